import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.launch.times import minutes_of, slurm_time


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("08", 8),
        (" 5 ", 5),
        ("90:00", 90),
        ("4:00", 4),  # minutes and seconds, for SLURM too
        ("0:01", 1),
        ("1:30", 2),
        ("4:00:00", 240),
        ("0:90:00", 90),
        ("100:00:00", 6000),
        ("2-12", 3600),
        ("2-12:30", 3630),
        ("2-00:00:00", 2880),
        ("1-0:0:1", 1441),
        ("365-00:00:00", 525600),
    ],
)
def test_times_mean_what_slurm_takes_them_for(text, minutes):
    assert minutes_of(text) == minutes


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "4h",
        "1.5",
        "-1",
        "1:2:3:4",
        "2-",
        "-2",
        "2-1:2:3:4",
        "1-2-3",
        "٣",
        "1:",
        ":30",
        "four",
        "5\n6",
        "1,5",
        "+5",
    ],
)
def test_what_is_no_time_is_refused_with_the_forms_that_are(text):
    with pytest.raises(UserError) as caught:
        minutes_of(text)
    assert repr(text) in caught.value.message
    assert "4:00:00" in caught.value.cure


@pytest.mark.parametrize("text", ["0", "0:00", "0-0", "00:00:00"])
def test_no_time_at_all_is_refused(text):
    with pytest.raises(UserError, match="above zero"):
        minutes_of(text)


@pytest.mark.parametrize("text", ["366-0", "9" * 5000, "9" * 30 + ":00:00"])
def test_years_are_refused(text):
    with pytest.raises(UserError, match="at most a year"):
        minutes_of(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("4h", "4:00:00"), ("2 days", "2-00:00:00"), ("90min", "1:30:00"), ("3D", "3-00:00:00")],
)
def test_a_unit_gets_the_time_that_was_meant(text, meant):
    with pytest.raises(UserError) as caught:
        minutes_of(text)
    assert caught.value.cure.startswith(f"Did you mean {meant}?")


def test_no_limit_is_said_by_leaving_the_key_out():
    with pytest.raises(UserError, match="Leave it out"):
        minutes_of("UNLIMITED")


@given(st.integers(1, 365 * 1440))
def test_a_time_survives_its_way_into_a_script(minutes):
    assert minutes_of(slurm_time(minutes)) == minutes


@pytest.mark.parametrize(
    ("minutes", "text"), [(1, "0:01:00"), (240, "4:00:00"), (1440, "1-00:00:00"), (2905, "2-00:25:00")]
)
def test_scripts_say_days_from_a_day_on(minutes, text):
    assert slurm_time(minutes) == text
