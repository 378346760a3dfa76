//! Draws the model. Widths are those of a terminal: some characters have two columns, some none.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};
use warren_daemon::printable;
use warren_types::Timestamp;

use super::{TaskOrder, TopModel};
use crate::output::{TableRow, one_line};
use crate::view::node::NodeView;
use crate::view::top::TaskUsageRow;

/// Columns between two columns of a table.
const GAP: usize = 2;
/// Narrowest first column.
const MIN_FIRST: usize = 8;
/// Widest column.
const MAX_WIDTH: usize = 48;

/// A column of a table: its title in the list of these objects, and here. The last ones are left out where the terminal
/// has no room.
type ShownColumn = (&'static str, &'static str);

const NODE_COLUMNS: &[ShownColumn] = &[
    ("NAME", "NODE"),
    ("STATUS", "STATUS"),
    ("TASKS", "TASKS"),
    ("CPU USED", "CPU USED"),
    ("CPU", "RESERVED"),
    ("MEMORY USED", "MEMORY USED"),
    ("MEMORY", "RESERVED"),
    ("AVAILABILITY", "AVAILABILITY"),
    ("ROLE", "ROLE"),
    ("CONDITIONS", "CONDITIONS"),
];

const TASK_COLUMNS: &[ShownColumn] = &[
    ("TASK", "TASK"),
    ("STATE", "STATE"),
    ("CPU", "CPU"),
    ("MEMORY", "MEMORY"),
    ("NODE", "NODE"),
    ("PIDS", "PIDS"),
    ("RECEIVED", "RECEIVED"),
    ("SENT", "SENT"),
    ("READ", "READ"),
    ("WRITTEN", "WRITTEN"),
];

/// Draws the whole terminal.
pub fn draw(frame: &mut Frame<'_>, model: &TopModel) {
    let height = usize::from(frame.area().height);
    let nodes = model.picture.nodes.len();
    let nodes_height = 1 + nodes.min((height / 4).max(1));
    let log_height = if model.log.is_some() { (height * 2 / 5).max(3) } else { 0 };
    let length = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
    let [summary, nodes, blank, tasks, detail, log, footer] = Layout::vertical([
        length(1),
        length(nodes_height),
        length(1),
        Constraint::Min(2),
        length(1),
        length(log_height),
        length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::styled(summary_text(model), Modifier::BOLD), summary);
    draw_nodes(frame, model, nodes);
    if let Some(more) = hidden_nodes(model, nodes) {
        frame.render_widget(Line::styled(more, Modifier::DIM), blank);
    }
    draw_tasks(frame, model, tasks);
    frame.render_widget(Line::raw(detail_text(model)), detail);
    draw_log(frame, model, log);
    frame.render_widget(footer_line(model), footer);
}

fn summary_text(model: &TopModel) -> String {
    let picture = &model.picture;
    let tasks = || picture.tasks.iter().map(TaskUsageRow::task);
    let (running, desired) =
        (tasks().filter(|task| task.is_running()).count(), tasks().filter(|task| task.is_desired()).count());
    let ready = picture.nodes.iter().filter(|node| node.is_ready()).count();
    let leader = match picture.leader.as_str() {
        "" => "no leader".to_owned(),
        leader => format!("leader {}", one_line(leader)),
    };
    let (nodes, managers) = (picture.nodes.len(), picture.managers);
    format!("tasks {running}/{desired} running   nodes {ready}/{nodes} ready   managers {managers}, {leader}")
}

/// Nodes that are not READY come first.
fn sorted_nodes(model: &TopModel) -> Vec<&NodeView> {
    let mut nodes: Vec<&NodeView> = model.picture.nodes.iter().collect();
    nodes.sort_by_key(|node| (node.is_ready(), &node.name));
    nodes
}

fn hidden_nodes(model: &TopModel, area: Rect) -> Option<String> {
    let shown = usize::from(area.height.saturating_sub(1));
    let hidden = model.picture.nodes.len().saturating_sub(shown);
    (hidden > 0).then(|| format!("and {hidden} more nodes"))
}

fn draw_nodes(frame: &mut Frame<'_>, model: &TopModel, area: Rect) {
    let nodes = sorted_nodes(model);
    let shown = usize::from(area.height.saturating_sub(1));
    let table = ShownTable { columns: NODE_COLUMNS, chosen: None, now: model.picture.read_at };
    table.draw(frame, area, nodes.into_iter().take(shown));
}

fn draw_tasks(frame: &mut Frame<'_>, model: &TopModel, area: Rect) {
    let rows = usize::from(area.height.saturating_sub(1));
    let chosen = model.chosen_position().unwrap_or_default();
    let last = model.shown.len().saturating_sub(rows);
    let first = chosen.saturating_sub(rows / 2).min(last);
    let shown = model.shown.iter().skip(first).take(rows).map(|position| &model.picture.tasks[*position]);
    let (chosen, now) = (Some(chosen - first), model.picture.read_at);
    ShownTable { columns: TASK_COLUMNS, chosen, now }.draw(frame, area, shown);
    if model.shown.is_empty() && area.height > 1 {
        let text = match model.picture.tasks.is_empty() {
            true => "no tasks",
            false => "no task matches the filter",
        };
        let below = Rect { y: area.y + 1, height: 1, ..area };
        frame.render_widget(Line::styled(text, Modifier::DIM), below);
    }
}

/// Why the picture is outdated, or why the chosen task is as it is.
fn detail_text(model: &TopModel) -> String {
    if let Some(warning) = &model.warning {
        return one_line(warning);
    }
    let task = model.chosen_position().map(|position| model.picture.tasks[model.shown[position]].task());
    let reason = task
        .map(|task| (task.name(), task.reason_text(model.picture.read_at)))
        .filter(|(_, why)| !why.is_empty());
    reason.map(|(name, why)| one_line(&format!("{name}: {why}"))).unwrap_or_default()
}

fn draw_log(frame: &mut Frame<'_>, model: &TopModel, area: Rect) {
    let Some(log) = &model.log else { return };
    let block = Block::new().borders(Borders::TOP).title(format!(" log of {} ", one_line(&log.name)));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let lines: Vec<Line<'_>> = log.last(inner.height.into()).map(Line::raw).collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

fn footer_line(model: &TopModel) -> Line<'static> {
    if model.is_filter_edited {
        let filter = printable(&model.filter).into_owned();
        return Line::raw(format!("filter: {filter}_   Enter keeps it, Esc clears it"));
    }
    let direction = if model.is_reversed { " reversed" } else { "" };
    let order = |key: &str, order: TaskOrder| {
        let is_current = model.order == order;
        let text = format!("{key}{}  ", if is_current { direction } else { "" });
        Span::styled(text, if is_current { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() })
    };
    let filter = match model.filter.as_str() {
        "" => "/ filter  ".to_owned(),
        filter => format!("/ filter: {}  ", printable(filter)),
    };
    Line::from(vec![
        Span::raw("q quit  "),
        order("c cpu", TaskOrder::Cpu),
        order("m memory", TaskOrder::Memory),
        order("n name", TaskOrder::Name),
        order("s state", TaskOrder::State),
        Span::raw(filter),
        Span::raw("↑↓ choose  Enter log  Esc close"),
    ])
}

/// A title and a line per row.
struct ShownTable {
    columns: &'static [ShownColumn],
    /// The position of the row that is marked.
    chosen: Option<usize>,
    now: Timestamp,
}

impl ShownTable {
    fn draw<'a, T: TableRow + 'a>(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        rows: impl Iterator<Item = &'a T>,
    ) {
        let position = |title: &str| T::COLUMNS.iter().position(|column| column.title == title);
        let positions: Vec<usize> = self.columns.iter().filter_map(|(title, _)| position(title)).collect();
        let titles: Vec<String> = self.columns.iter().map(|(_, shown)| (*shown).to_owned()).collect();
        let cells = |row: &T| {
            let cells = row.cells(false, self.now);
            positions.iter().map(|position| one_line(&cells[*position])).collect::<Vec<_>>()
        };
        let lines: Vec<Vec<String>> = std::iter::once(titles).chain(rows.map(cells)).collect();
        let widths = fitting_widths(&lines, area.width.into());
        let styled = |(row, cells): (usize, &Vec<String>)| {
            let style = match row {
                0 => Modifier::BOLD,
                row if self.chosen == Some(row - 1) => Modifier::REVERSED,
                _ => Modifier::empty(),
            };
            let cells = cells.iter().zip(&widths).map(|(cell, width)| padded(cell, *width));
            Line::styled(cells.collect::<Vec<_>>().join(&" ".repeat(GAP)), style)
        };
        frame.render_widget(Paragraph::new(lines.iter().enumerate().map(styled).collect::<Vec<_>>()), area);
    }
}

/// The widths of the first columns that fit; the first column gives way for the second.
fn fitting_widths(lines: &[Vec<String>], room: usize) -> Vec<usize> {
    let columns = lines.first().map_or(0, Vec::len);
    let width_of = |column: usize| {
        lines.iter().map(|cells| width(&cells[column])).max().unwrap_or_default().min(MAX_WIDTH)
    };
    let mut widths: Vec<usize> = Vec::new();
    let mut used = 0;
    for column in 0..columns {
        let wanted = width_of(column) + if column == 0 { 0 } else { GAP };
        if used + wanted > room && column > 1 {
            break;
        }
        used += wanted;
        widths.push(width_of(column));
    }
    let excess = used.saturating_sub(room);
    if let Some(first) = widths.first_mut() {
        *first = first.saturating_sub(excess).max(MIN_FIRST.min(*first));
    }
    widths
}

fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text with exactly this width, cut if it is longer.
fn padded(text: &str, room: usize) -> String {
    let mut shown = text.to_owned();
    if width(text) > room {
        shown.clear();
        for character in text.chars() {
            if width(&shown) + width(character.encode_utf8(&mut [0; 4])) + 1 > room {
                break;
            }
            shown.push(character);
        }
        shown.push('…');
    }
    let missing = room.saturating_sub(width(&shown));
    shown + &" ".repeat(missing)
}
