//! Pictures of the model, and what keys do.

use insta::assert_snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;
use warren_types::Timestamp;

use super::draw::draw;
use super::{ClusterPicture, LogEvent, TopAction, TopModel};
use crate::view::node::NodeView;
use crate::view::top::TaskUsageRow;

fn node(name: &str, is_ready: bool) -> NodeView {
    let description = v1::NodeDescription {
        resources: Some(v1::Resources { cpu_milli: 4000, memory_bytes: 8 << 30 }),
        ..Default::default()
    };
    let usage = v1::NodeUsage { cpu_milli: 1250, memory_bytes: 3 << 30, ..Default::default() };
    let status = if is_ready { v1::NodeStatus::Ready } else { v1::NodeStatus::Down };
    let wire = v1::Node {
        id: format!("{name}-id"),
        name: name.into(),
        description: Some(description),
        status: status.into(),
        role: v1::NodeRole::Worker.into(),
        availability: v1::Availability::Active.into(),
        reserved: Some(v1::Resources { cpu_milli: 500, memory_bytes: 1 << 30 }),
        tasks: 2,
        usage: is_ready.then_some(usage),
        ..Default::default()
    };
    NodeView::try_from(wire).unwrap()
}

fn task(name: &str, slot: u32, usage: Option<(u64, u64)>) -> v1::Task {
    let usage = usage.map(|(cpu_milli, mebibytes)| v1::TaskUsage {
        cpu_milli,
        memory_bytes: mebibytes << 20,
        pids: 3,
        ..Default::default()
    });
    let state = if usage.is_some() { v1::TaskState::Running } else { v1::TaskState::Pending };
    v1::Task {
        id: format!("{name}-{slot}-id"),
        service_name: name.into(),
        slot,
        node_name: if usage.is_some() { "node-1".into() } else { String::new() },
        spec: Some(v1::TaskSpec { image: "nginx".into(), ..Default::default() }),
        desired: v1::DesiredTaskState::Running.into(),
        state: state.into(),
        ready: usage.is_some(),
        reason: if usage.is_some() { String::new() } else { "no node fits: 1 lacks memory".into() },
        usage,
        ..Default::default()
    }
}

fn picture(nodes: Vec<NodeView>, tasks: Vec<v1::Task>) -> ClusterPicture {
    let tasks = TaskUsageRow::all(tasks).unwrap();
    ClusterPicture { managers: 3, leader: "node-1".into(), nodes, tasks, read_at: Timestamp(0) }
}

fn model() -> TopModel {
    let tasks = vec![
        task("web", 1, Some((120, 64))),
        task("web", 2, Some((30, 512))),
        task("db", 1, Some((900, 256))),
        task("api", 1, None),
    ];
    TopModel::new(picture(vec![node("node-1", true), node("node-2", false)], tasks))
}

fn drawn(model: &TopModel, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(|y| row(y) + "\n").collect()
}

fn press(model: &mut TopModel, code: KeyCode) -> TopAction {
    model.press(KeyEvent::new(code, KeyModifiers::NONE))
}

/// The names of the tasks that are shown, with a star at the chosen one.
fn names(model: &TopModel) -> String {
    let chosen = model.chosen_position();
    let name = |(position, task): (usize, &usize)| {
        let star = if chosen == Some(position) { "*" } else { "" };
        format!("{star}{}", model.picture.tasks[*task].task().name())
    };
    model.shown.iter().enumerate().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn wide_terminal_shows_everything() {
    assert_snapshot!("wide", drawn(&model(), 120, 14));
}

#[test]
fn narrow_terminal_shows_what_matters_most() {
    assert_snapshot!("narrow", drawn(&model(), 44, 12));
}

#[test]
fn empty_cluster_is_shown() {
    let model = TopModel::new(ClusterPicture { leader: String::new(), ..picture(Vec::new(), Vec::new()) });
    assert_snapshot!("empty", drawn(&model, 80, 8));
}

#[test]
fn long_names_are_cut_and_control_characters_escaped() {
    let tasks =
        vec![task(&"long-".repeat(12), 1, Some((100, 10))), task("\u{1b}[2Jевил\u{7}", 2, Some((50, 10)))];
    let mut model = TopModel::new(picture(vec![node("node\u{1b}[31m\nx", true)], tasks));
    press(&mut model, KeyCode::Enter);
    let text = "a\tb\u{1b}[2Jc\r".as_bytes().to_vec();
    let line = v1::LogLine { text: text.into(), ..Default::default() };
    model.log_mut().unwrap().add(LogEvent::Entry(Entry::Line(line)));
    assert_snapshot!("long_names", drawn(&model, 70, 12));
}

#[test]
fn log_of_the_chosen_task_is_below_the_tasks() {
    let mut model = model();
    press(&mut model, KeyCode::Enter);
    let pane = model.log_mut().unwrap();
    for (text, partial) in [("one", false), ("two ", true), ("halves", false), ("three", false)] {
        let line = v1::LogLine { text: text.into(), partial, ..Default::default() };
        pane.add(LogEvent::Entry(Entry::Line(line)));
    }
    pane.add(LogEvent::End);
    model.warn("no manager answers");
    assert_snapshot!("log", drawn(&model, 80, 16));
}

#[test]
fn tables_of_a_low_terminal_scroll_to_the_chosen_task() {
    let tasks = (1..=50).map(|slot| task("web", slot, Some((10, 10)))).collect();
    let nodes = (1..=9).map(|number| node(&format!("node-{number}"), true)).collect();
    let mut model = TopModel::new(picture(nodes, tasks));
    press(&mut model, KeyCode::Char('n'));
    (0..30).for_each(|_| drop(press(&mut model, KeyCode::Down)));
    assert_snapshot!("scrolled", drawn(&model, 60, 14));
}

#[test]
fn keys_change_the_model() {
    let mut model = model();
    let key = |character| KeyCode::Char(character);
    assert_eq!(names(&model), "*db.1 web.1 web.2 api.1");
    for (code, action, shown) in [
        (KeyCode::Down, TopAction::Continue, "db.1 *web.1 web.2 api.1"),
        (key('m'), TopAction::Continue, "web.2 db.1 *web.1 api.1"),
        (key('n'), TopAction::Continue, "api.1 db.1 *web.1 web.2"),
        (key('n'), TopAction::Continue, "web.2 *web.1 db.1 api.1"),
        (key('s'), TopAction::Continue, "api.1 db.1 *web.1 web.2"),
        (key('c'), TopAction::Continue, "db.1 *web.1 web.2 api.1"),
        (KeyCode::Enter, TopAction::ReadLog("web-1-id".into()), "db.1 *web.1 web.2 api.1"),
        (KeyCode::Up, TopAction::Continue, "*db.1 web.1 web.2 api.1"),
        (KeyCode::Enter, TopAction::ReadLog("db-1-id".into()), "*db.1 web.1 web.2 api.1"),
        (KeyCode::Enter, TopAction::EndLog, "*db.1 web.1 web.2 api.1"),
        (KeyCode::End, TopAction::Continue, "db.1 web.1 web.2 *api.1"),
        (KeyCode::Down, TopAction::Continue, "db.1 web.1 web.2 *api.1"),
        (KeyCode::PageUp, TopAction::Continue, "*db.1 web.1 web.2 api.1"),
        // In the filter, letters are letters.
        (key('/'), TopAction::Continue, "*db.1 web.1 web.2 api.1"),
        (key('W'), TopAction::Continue, "*web.1 web.2"),
        (key('q'), TopAction::Continue, ""),
        (KeyCode::Backspace, TopAction::Continue, "*web.1 web.2"),
        (KeyCode::Enter, TopAction::Continue, "*web.1 web.2"),
        (KeyCode::Esc, TopAction::Continue, "db.1 *web.1 web.2 api.1"),
        (key('/'), TopAction::Continue, "db.1 *web.1 web.2 api.1"),
        (key('p'), TopAction::Continue, "*api.1"),
        (KeyCode::Esc, TopAction::Continue, "db.1 web.1 web.2 *api.1"),
        (KeyCode::Enter, TopAction::ReadLog("api-1-id".into()), "db.1 web.1 web.2 *api.1"),
        (KeyCode::Esc, TopAction::EndLog, "db.1 web.1 web.2 *api.1"),
        (key('q'), TopAction::Quit, "db.1 web.1 web.2 *api.1"),
    ] {
        assert_eq!((press(&mut model, code), names(&model).as_str()), (action, shown), "{code:?}");
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut model, key('/'));
    assert_eq!(model.press(interrupt), TopAction::Quit);
    // The task in the place of one that is gone is chosen.
    model.renew(picture(Vec::new(), vec![task("web", 1, Some((5, 5)))]));
    assert_eq!(names(&model), "*web.1");
}
