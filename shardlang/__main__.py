"""``python -m shardlang`` is the command line."""

from shardlang.cli import main

if __name__ == "__main__":
    main(prog_name="shardlang")
