//! The drawing of the interactive screen.

use super::load::LoadDivision;
use super::pages::{Column, Kind, Page, Value};
use super::screen::{Screen, VIEWS};
use crate::output::charset::Charset;
use crate::output::printable::printable_line;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Row, Table, TableState};
use unicode_width::UnicodeWidthStr;

/// The columns between two columns of the table.
const SPACING: usize = 2;

/// The least width of a longer name: those of resources fit.
const LEAST_NAME: usize = 14;

/// The least width of a history.
const LEAST_HISTORY: usize = 8;

/// The most columns of a history.
const MOST_HISTORY: usize = 60;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let remark = screen.remark();
    let heights = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(u16::from(!remark.is_empty())),
        Constraint::Length(1),
    ];
    let [title, views, table, remarks, keys] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(title_line(screen, title.width), title);
    frame.render_widget(views_line(screen), views);
    draw_table(frame, screen, table);
    let remark = screen.charset.cut(&remark, remarks.width.into());
    frame.render_widget(Line::styled(remark, BOLD), remarks);
    frame.render_widget(keys_line(screen.charset, keys.width), keys);
    if screen.is_help {
        draw_help(frame, screen.charset);
    }
}

fn title_line(screen: &Screen, width: u16) -> Line<'static> {
    let focus = screen.focus();
    let mut path = screen.machine.clone();
    let arrow = screen.charset.choose(" › ", " > ");
    if let Some(cell) = &focus.cell {
        path.push_str(arrow);
        path.push_str(&printable_line(cell));
    }
    if let Some(resource) = &focus.resource {
        path.push_str(arrow);
        path.push_str(&printable_line(resource));
    }
    let cells = match screen.cell_count() {
        1 => "1 cell".to_owned(),
        count => format!("{count} cells"),
    };
    let right = format!("{cells}, every {:?}", screen.interval);
    let room = usize::from(width).saturating_sub(right.width() + 1);
    Line::styled(format!("{} {right}", screen.charset.fit(&path, room)), BOLD)
}

fn views_line(screen: &Screen) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, (_, name)) in VIEWS.iter().enumerate() {
        let style = if index == screen.view() { REVERSED } else { DIM };
        spans.push(Span::styled(format!("{} {name}", index + 1), style));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

fn keys_line(charset: Charset, width: u16) -> Line<'static> {
    let text = charset.choose(
        "q end  ? help  Enter open  Esc back  ←→ sort  r reverse  ↑↓ select  1-4 view",
        "q end  ? help  Enter open  Esc back  <> sort  r reverse  jk select  1-4 view",
    );
    Line::styled(charset.cut(text, width.into()), DIM)
}

fn draw_table(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let page = screen.page();
    if page.rows.is_empty() {
        return;
    }
    let shown = layout(&page, area.width.into());
    let sort = screen.sort();
    let heading = |(index, width): &(usize, usize)| {
        let column = page.columns[*index];
        let mark = match (sort.column == Some(*index), sort.is_reversed) {
            (false, _) => "",
            (true, false) => screen.charset.choose("▼", "v"),
            (true, true) => screen.charset.choose("▲", "^"),
        };
        let heading = match column.kind {
            Kind::History => history_heading(screen),
            _ => column.heading,
        };
        aligned(screen.charset, &format!("{heading}{mark}"), *width, is_right(&page, *index))
    };
    let header = Row::new(shown.iter().map(heading)).style(BOLD);
    let rows = page.rows.iter().map(|row| {
        Row::new(shown.iter().map(|(index, width)| match page.columns[*index].kind {
            Kind::History => screen.sparkline(&row.key, *width),
            _ => aligned(screen.charset, &row.values[*index].text, *width, is_right(&page, *index)),
        }))
    });
    let widths = shown.iter().map(|(_, width)| Constraint::Length(*width as u16));
    let table =
        Table::new(rows, widths).header(header).column_spacing(SPACING as u16).row_highlight_style(REVERSED);
    let mut state = TableState::new().with_selected(screen.selected());
    frame.render_stateful_widget(table, area, &mut state);
}

fn history_heading(screen: &Screen) -> &'static str {
    match screen.focus().by {
        LoadDivision::Resource => "COST",
        LoadDivision::Cell | LoadDivision::Activity | LoadDivision::Core => "HISTORY",
    }
}

/// Returns whether a column has numbers, which are aligned at the right.
fn is_right(page: &Page, index: usize) -> bool {
    page.columns[index].kind == Kind::Value
        && page.rows.iter().all(|row| row.values.get(index).is_some_and(Value::is_number))
}

fn aligned(charset: Charset, text: &str, width: usize, is_right: bool) -> String {
    let text = charset.cut(text, width);
    if !is_right {
        return text;
    }
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}

/// Chooses the columns that fit, each with its width. Columns of the highest rank are left out first. The history gets
/// the room that is left.
fn layout(page: &Page, width: usize) -> Vec<(usize, usize)> {
    let longest = |(index, column): (usize, &Column)| {
        let values = page.rows.iter().filter_map(|row| row.values.get(index)).map(|value| value.text.width());
        // A heading may have a mark.
        values.max().unwrap_or(0).max(column.heading.width() + 1)
    };
    let wanted: Vec<usize> = page.columns.iter().enumerate().map(longest).collect();
    let least = |index: usize| match page.columns[index].kind {
        Kind::Name => wanted[index].min(LEAST_NAME),
        Kind::History => LEAST_HISTORY,
        Kind::Value => wanted[index],
    };
    let mut shown: Vec<usize> = (0..page.columns.len()).collect();
    let needed = |shown: &[usize]| {
        let sum: usize = shown.iter().map(|index| least(*index)).sum();
        sum + SPACING * shown.len().saturating_sub(1)
    };
    while shown.len() > 1 && needed(&shown) > width {
        let Some(last) = (0..shown.len()).max_by_key(|at| page.columns[shown[*at]].rank) else { break };
        shown.remove(last);
    }
    let mut room = width.saturating_sub(needed(&shown));
    let mut widths: Vec<(usize, usize)> = shown.iter().map(|index| (*index, least(*index))).collect();
    // Names come first, then histories.
    for (kind, most) in [(Kind::Name, usize::MAX), (Kind::History, MOST_HISTORY)] {
        for (index, width) in widths.iter_mut().filter(|(index, _)| page.columns[*index].kind == kind) {
            let most = if kind == Kind::Name { wanted[*index] } else { most };
            let more = most.saturating_sub(*width).min(room);
            *width += more;
            room -= more;
        }
    }
    widths
}

fn draw_help(frame: &mut Frame<'_>, charset: Charset) {
    let select = charset.choose("↑ ↓ j k", "j k");
    let sort = charset.choose("← → < >", "< >");
    let keys = [
        ("1 2 3 4", "one of the views"),
        ("Tab", "the next view"),
        (select, "select; PgUp PgDn Home End"),
        ("Enter", "open the selected row"),
        ("Esc", "back"),
        (sort, "sort by another column"),
        ("r", "reverse the order"),
        ("?", "these keys"),
        ("q ^C", "end"),
    ];
    let lines = keys.iter().map(|(key, effect)| Line::raw(format!(" {} {effect}", charset.fit(key, 9))));
    let lines: Vec<Line<'_>> = [Line::styled(" keys", BOLD)].into_iter().chain(lines).collect();
    let area = frame.area();
    let height = (lines.len() as u16).min(area.height);
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 1;
    let width = width.min(area.width);
    let area = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).style(REVERSED), area);
}
