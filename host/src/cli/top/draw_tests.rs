//! The screens as a terminal of some sizes shows them.

use super::draw::draw;
use super::load::LoadDivision;
use super::sample::{CellSample, Sample, SampleSpec};
use super::screen::{Screen, Step};
use super::test_samples::{activities_answer, busy, grid_answer, quiet, sample};
use crate::output::charset::Charset;
use crate::query::QueryAnswer;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::Duration;

const SIZES: [(u16, u16); 3] = [(80, 24), (40, 10), (200, 60)];

/// Returns the lines that a terminal shows.
fn drawn(screen: &Screen, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn screen(by: LoadDivision) -> Screen {
    let wanted = SampleSpec { by, cell: None };
    Screen::new("default", &wanted, Duration::from_secs(1), Charset::Unicode)
}

/// Returns a sample of two cells. `scale` grows with time.
fn two_cells(scale: u64, answer: impl Fn(u64) -> Option<QueryAnswer>) -> Sample {
    let cell = |id, name, cycles| CellSample {
        activities: answer(cycles),
        grid: answer(cycles),
        ..quiet(busy(id, name, cycles))
    };
    sample(vec![cell(1, "kv", scale * 80_000), cell(2, "batch", scale * 160_000)])
}

fn press(screen: &mut Screen, keys: &[KeyCode]) -> Vec<Step> {
    keys.iter().map(|key| screen.key(KeyEvent::new(*key, KeyModifiers::NONE))).collect()
}

fn wanted(by: LoadDivision, cell: Option<&str>) -> Step {
    Step::Sample(SampleSpec { by, cell: cell.map(str::to_owned) })
}

#[test]
fn the_cells_are_shown_with_their_histories_on_every_size() {
    for size in SIZES {
        let mut screen = screen(LoadDivision::Cell);
        (1..8).for_each(|scale| screen.update(two_cells(scale, |_| None)));
        let lines = drawn(&screen, size);
        assert!(lines[0].starts_with("default") && lines[0].ends_with("2 cells, every 1s"), "{lines:#?}");
        assert!(lines[1].starts_with("1 cells 2 activities"), "{lines:#?}");
        assert!(lines[2].starts_with("CELL") && lines[2].contains("USE▼"), "{lines:#?}");
        let row = lines.iter().find(|line| line.starts_with("kv")).unwrap();
        assert!(row.contains("50.0 %"), "{lines:#?}");
        assert!(row.contains("▄▄▄▄▄▄"), "{lines:#?}");
        assert_eq!(lines[2].contains("MEMORY"), size.0 >= 80, "{lines:#?}");
        assert!(lines.last().unwrap().starts_with("q end  ? help"), "{lines:#?}");
    }
}

#[test]
fn enter_opens_the_tree_of_a_cell_and_a_part_of_it_and_escape_returns() {
    let mut screen = screen(LoadDivision::Cell);
    let both = |scale| two_cells(scale, |cycles| Some(activities_answer(cycles)));
    (1..3).for_each(|scale| screen.update(both(scale)));
    // Rows of the same use keep the order of the cells.
    assert_eq!(
        press(&mut screen, &[KeyCode::Down, KeyCode::Enter])[1],
        wanted(LoadDivision::Activity, Some("batch"))
    );
    screen.update(both(3));
    let lines = drawn(&screen, (80, 24));
    assert!(lines[0].starts_with("default › batch"), "{lines:#?}");
    let names: Vec<&str> = lines[3..7].iter().map(|line| line.split("  1").next().unwrap()).collect();
    assert!(lines[3].starts_with("web ") && lines[4].starts_with("  10.0.2.2:40001"), "{names:?}");
    assert!(lines[5].starts_with("  10.0.2.2:40002") && lines[6].starts_with("infrastructure"), "{lines:#?}");
    assert_eq!(
        press(&mut screen, &[KeyCode::Home, KeyCode::Enter])[1],
        wanted(LoadDivision::Activity, Some("batch"))
    );
    let lines = drawn(&screen, (80, 24));
    assert!(lines[3].starts_with("web ") && lines[5].starts_with("  10.0.2.2:40002"), "{lines:#?}");
    assert_eq!(lines[6], "", "{lines:#?}");
    press(&mut screen, &[KeyCode::Esc, KeyCode::Esc]);
    let lines = drawn(&screen, (80, 24));
    assert!(lines[3].starts_with("kv") && lines[4].starts_with("batch"), "{lines:#?}");
    assert_eq!(screen.selected(), 1, "the row that was opened is selected again");
    assert_eq!(press(&mut screen, &[KeyCode::Esc]), [Step::Draw]);
}

#[test]
fn resources_are_shown_with_policy_queue_and_waits_and_open_their_activities() {
    for size in SIZES {
        let mut screen = screen(LoadDivision::Resource);
        (1..4).for_each(|scale| screen.update(two_cells(scale, |cycles| Some(grid_answer(cycles / 1000)))));
        let lines = drawn(&screen, size);
        assert!(lines[2].starts_with("RESOURCE") && lines[2].contains("POLICY"), "{lines:#?}");
        assert!(lines[3].starts_with("processor") && lines[3].contains("wfq"), "{lines:#?}");
        assert!(lines[4].starts_with("network-write") && lines[4].contains("direct"), "{lines:#?}");
        let step = press(&mut screen, &[KeyCode::Enter]).pop();
        assert_eq!(step, Some(wanted(LoadDivision::Resource, Some("kv"))));
        let lines = drawn(&screen, size);
        assert!(lines[0].starts_with("default › kv"), "{lines:#?}");
        assert!(lines[3].starts_with("web") && lines[3].contains("75.0 %"), "{lines:#?}");
        assert!(lines[4].starts_with("batch") && lines[4].contains("25.0 %"), "{lines:#?}");
    }
}

#[test]
fn without_a_chosen_cell_the_activities_of_all_cells_open_their_trees() {
    let mut screen = screen(LoadDivision::Activity);
    (1..3).for_each(|scale| screen.update(two_cells(scale, |cycles| Some(activities_answer(cycles)))));
    let lines = drawn(&screen, (80, 24));
    assert!(lines[2].contains("CELL") && !lines.iter().any(|line| line.contains("10.0.2.2")), "{lines:#?}");
    let of_cells = |name: &str| lines[3..7].iter().filter(|line| line.ends_with(name)).count();
    assert_eq!((of_cells("kv"), of_cells("batch")), (2, 2), "{lines:#?}");
    press(&mut screen, &[KeyCode::End]);
    let cell = if lines[6].ends_with("kv") { "kv" } else { "batch" };
    assert_eq!(press(&mut screen, &[KeyCode::Enter]), [wanted(LoadDivision::Activity, Some(cell))]);
    assert!(drawn(&screen, (80, 24)).iter().any(|line| line.starts_with("  10.0.2.2:40001")));
}

#[test]
fn columns_sort_in_both_orders() {
    let mut screen = screen(LoadDivision::Core);
    (1..3).for_each(|scale| screen.update(two_cells(scale, |_| None)));
    let first = |screen: &Screen| drawn(screen, (80, 24))[3].clone();
    assert!(first(&screen).contains("kv"), "cores are in their order at first");
    press(&mut screen, &[KeyCode::Right, KeyCode::Right]);
    assert!(drawn(&screen, (80, 24))[2].contains("CELL▼"));
    assert!(first(&screen).contains("batch"));
    press(&mut screen, &[KeyCode::Char('r')]);
    assert!(drawn(&screen, (80, 24))[2].contains("CELL▲"));
    assert!(first(&screen).contains("kv"));
    press(&mut screen, &[KeyCode::Left, KeyCode::Left]);
    assert!(drawn(&screen, (200, 24))[2].contains("PHASE▼"));
}

#[test]
fn the_selection_stays_with_its_row_when_rows_come_and_go() {
    let mut screen = screen(LoadDivision::Cell);
    (1..3).for_each(|scale| screen.update(two_cells(scale, |_| None)));
    press(&mut screen, &[KeyCode::Down]);
    assert_eq!(screen.selected(), 1);
    screen.update(sample(vec![quiet(busy(2, "batch", 500_000))]));
    assert_eq!((screen.selected(), screen.page().rows.len()), (0, 1));
    screen.update(sample(vec![]));
    let lines = drawn(&screen, (80, 24));
    assert!(lines[22].contains("no cell runs"), "{lines:#?}");
    press(&mut screen, &[KeyCode::Down, KeyCode::Enter, KeyCode::End, KeyCode::Char('r'), KeyCode::Right]);
    screen.update(two_cells(9, |_| None));
    assert_eq!(screen.page().rows.len(), 2);
}

#[test]
fn a_cell_that_ended_or_does_not_answer_is_explained() {
    let silent = |scale: u64| CellSample { is_silent: true, ..only(scale) };
    fn only(scale: u64) -> CellSample {
        quiet(busy(1, "kv", scale * 1000))
    }
    for size in SIZES {
        let mut screen = Screen::new(
            "default",
            &SampleSpec { by: LoadDivision::Activity, cell: Some("kv".into()) },
            Duration::from_secs(1),
            Charset::Unicode,
        );
        (1..3).for_each(|scale| screen.update(sample(vec![silent(scale)])));
        let lines = drawn(&screen, size);
        let remark = &lines[lines.len() - 2];
        assert!(remark.starts_with("kv does not answer queries: figures"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("web")), "{lines:#?}");
        press(&mut screen, &[KeyCode::Char('3')]);
        let lines = drawn(&screen, size);
        assert!(lines[3].starts_with("(no answer)"), "{lines:#?}");
        screen.update(sample(vec![]));
        let lines = drawn(&screen, size);
        assert_eq!(lines[lines.len() - 2], "kv does not run");
        screen.error = Some("machine \"default\" is down".into());
        let lines = drawn(&screen, size);
        assert_eq!(lines[lines.len() - 2], "machine \"default\" is down");
    }
}

#[test]
fn long_and_hostile_names_keep_the_columns() {
    for size in SIZES {
        let mut screen = screen(LoadDivision::Cell);
        let name = format!("\x1b[2J\n語{}", "long".repeat(60));
        let cells = |scale: u64| sample(vec![quiet(busy(1, &name, scale * 1000))]);
        (1..3).for_each(|scale| screen.update(cells(scale)));
        let lines = drawn(&screen, size);
        assert!(lines[3].starts_with(r"\x1b[2J"), "{lines:#?}");
        assert!(lines[3].contains("… ") && lines[3].contains("50.0 %"), "{lines:#?}");
        press(&mut screen, &[KeyCode::Enter]);
        assert!(drawn(&screen, size)[0].contains(r"\x1b[2J"));
    }
}

#[test]
fn help_shows_the_keys_and_other_keys_close_it() {
    for size in SIZES {
        let mut screen = screen(LoadDivision::Cell);
        screen.update(two_cells(1, |_| None));
        press(&mut screen, &[KeyCode::Char('?')]);
        let lines = drawn(&screen, size);
        assert!(lines.iter().any(|line| line.contains("the next view")), "{lines:#?}");
        assert_eq!(press(&mut screen, &[KeyCode::Down]), [Step::Draw]);
        assert!(!screen.is_help);
    }
}

#[test]
fn an_ascii_terminal_gets_ascii_only_and_a_tiny_one_is_no_error() {
    let wanted = SampleSpec { by: LoadDivision::Cell, cell: None };
    let mut screen = Screen::new("default", &wanted, Duration::from_millis(100), Charset::Ascii);
    (1..4).for_each(|scale| screen.update(two_cells(scale, |_| None)));
    for help in [false, true] {
        screen.is_help = help;
        let lines = drawn(&screen, (80, 24));
        assert!(lines.iter().all(|line| line.is_ascii()), "{lines:#?}");
        for size in [(1, 1), (3, 2), (10, 3), (20, 4), (0, 0)] {
            drawn(&screen, size);
        }
    }
}

#[test]
fn keys_switch_views_and_end() {
    let mut screen = screen(LoadDivision::Cell);
    (1..3).for_each(|scale| screen.update(two_cells(scale, |_| None)));
    let steps =
        press(&mut screen, &[KeyCode::Char('4'), KeyCode::Char('3'), KeyCode::Tab, KeyCode::Char('1')]);
    let expected = [
        wanted(LoadDivision::Core, None),
        wanted(LoadDivision::Resource, None),
        wanted(LoadDivision::Core, None),
        wanted(LoadDivision::Cell, None),
    ];
    assert_eq!(steps, expected);
    assert_eq!(press(&mut screen, &[KeyCode::Char('2')]), [wanted(LoadDivision::Activity, Some("kv"))]);
    assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), [Step::End]);
    assert_eq!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Step::End);
}
