"""The smallest typer program with two commands: the floor under `envbuild --help`."""

import typer

app = typer.Typer(no_args_is_help=True)


@app.command()
def hello(name: str) -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


@app.command()
def goodbye(name: str) -> None:
    """Say goodbye."""
    typer.echo(f"goodbye {name}")


if __name__ == "__main__":
    app()
