from docs_pages.sites import sites_page

from portwright.launch.site import JobDefaults
from portwright.launch.site_files import SHIPPED


def test_the_page_has_every_site_and_every_key():
    page = sites_page("")
    for path in SHIPPED.glob("*.toml"):
        assert f"| `{path.stem}` |" in page
    for key in (
        *JobDefaults.model_fields,
        "extends",
        "scheduler",
        "run_flags",
        "images_on_nodes",
        "on_nodes",
    ):
        assert f"| `{key}` |" in page
    assert "| `job` |" not in page  # a table, with a section of its own


def test_no_key_is_without_a_meaning_and_no_path_of_this_machine_is_on_the_page():
    page = sites_page("")
    assert "|  |" not in page
    assert str(SHIPPED) not in page
