//! `--watch` of every list: lists again when the cluster has changed. A terminal shows the table as it is now;
//! otherwise the list is printed once, and then each row that is another one.

mod screen;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use warren_client::{Client, EventQuery, EventStart, EventStream};
use warren_daemon::printable;

use self::screen::WatchScreen;
use crate::failure::{CommandError, ExitKind};
use crate::output::{ListContent, ListedRow, Listing};
use crate::signals::LocalSignals;
use crate::view::now;

/// Least time between two lists.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longest time between two lists: not everything that a list shows has an event.
const LONGEST: Duration = Duration::from_secs(10);
/// Interval at which ages are drawn again.
const TICK: Duration = Duration::from_secs(1);

/// Prints a list: once, or with `--watch` until interrupted. `fetch` reads it.
pub async fn show<T: ListedRow, C: Into<ListContent<T>>>(
    list: &Listing<T>,
    client: &Client,
    fetch: impl AsyncFn() -> Result<C, CommandError>,
) -> Result<(), CommandError> {
    if !list.is_watched() {
        return list.print(fetch().await?, now());
    }
    let mut changes = ClusterChanges::new(client);
    let first = matching(list, fetch().await?);
    if list.is_table() && io::stdout().is_terminal() {
        let failed = |error| CommandError::new(ExitKind::Failed, "the list was not watched", error, "");
        let mut signals = LocalSignals::new().map_err(failed)?;
        let screen = WatchScreen::open().map_err(failed)?;
        return tokio::select! {
            ended = redraw(list, screen, &mut changes, first, fetch) => ended,
            _ = signals.ending.next() => Ok(()),
        };
    }
    stream(list, &mut changes, first, fetch).await
}

fn matching<T: ListedRow>(list: &Listing<T>, content: impl Into<ListContent<T>>) -> ListContent<T> {
    let mut content = content.into();
    content.items.retain(|item| list.matches(item));
    content
}

async fn redraw<T: ListedRow, C: Into<ListContent<T>>>(
    list: &Listing<T>,
    mut screen: WatchScreen,
    changes: &mut ClusterChanges,
    mut content: ListContent<T>,
    fetch: impl AsyncFn() -> Result<C, CommandError>,
) -> Result<(), CommandError> {
    let mut warning = None;
    loop {
        let mut broken = None;
        let mut draw = || {
            let notes: Vec<&str> = content.notes.iter().chain(&warning).map(String::as_str).collect();
            let drawn = screen.draw(
                |rows| {
                    // Only what fits is laid out: a list can be long.
                    let shown = &content.items[..rows.min(content.items.len())];
                    let (title, lines) = list.rows(shown, now())?;
                    Ok((title, lines, content.items.len()))
                },
                &notes,
            );
            broken = drawn.err();
            broken.is_none()
        };
        changes.wait(&mut draw).await;
        if let Some(error) = broken {
            return Err(error);
        }
        match fetch().await {
            Ok(fetched) => (content, warning) = (matching(list, fetched), None),
            Err(error) if is_transient(&error) => warning = Some(format!("not up to date: {}", error.why)),
            Err(error) => return Err(error),
        }
    }
}

async fn stream<T: ListedRow, C: Into<ListContent<T>>>(
    list: &Listing<T>,
    changes: &mut ClusterChanges,
    mut content: ListContent<T>,
    fetch: impl AsyncFn() -> Result<C, CommandError>,
) -> Result<(), CommandError> {
    let (mut printed, mut notes, mut is_first) = (PrintedRows::default(), Vec::new(), true);
    loop {
        let rows = content.items.iter().map(|item| PrintedRow {
            key: item.key(),
            name: item.cells(false, now()).swap_remove(0),
            compared: list.compared(item),
        });
        let difference = printed.update(rows.collect());
        let mut text = String::new();
        if is_first || !difference.changed.is_empty() {
            let (title, rows) = list.rows(&content.items, now())?;
            text += if is_first { &title } else { "" };
            difference.changed.iter().for_each(|position| text += &rows[*position]);
        }
        for (key, name) in difference.removed {
            match list.is_json() {
                true => text += &format!("{}\n", serde_json::json!({ "removed": key })),
                false => eprintln!("{} is not listed any more", printable(&name)),
            }
        }
        if !print(&text)? {
            return Ok(());
        }
        for note in content.notes.iter().filter(|note| !notes.contains(*note)) {
            eprintln!("{}", printable(note));
        }
        (notes, is_first) = (content.notes, false);
        let mut is_warned = false;
        content = loop {
            changes.wait(&mut || true).await;
            match fetch().await {
                Ok(fetched) => break matching(list, fetched),
                Err(error) if is_transient(&error) && is_warned => {}
                Err(error) if is_transient(&error) => {
                    is_warned = true;
                    eprintln!("not up to date: {}", printable(&error.why));
                }
                Err(error) => return Err(error),
            }
        };
    }
}

/// Prints to standard output; whether somebody reads it.
fn print(text: &str) -> Result<bool, CommandError> {
    let mut stdout = io::stdout().lock();
    let text = if stdout.is_terminal() { printable(text) } else { text.into() };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CommandError::new(ExitKind::Failed, "the list was not printed", error, "")),
        Ok(()) => Ok(true),
    }
}

/// Whether a later list may succeed.
fn is_transient(error: &CommandError) -> bool {
    matches!(error.kind, ExitKind::Unreachable | ExitKind::TimedOut)
}

/// The events of the cluster, as a sign to look again. What was lost of them is made up for by [`LONGEST`].
pub struct ClusterChanges {
    client: Client,
    events: Option<EventStream>,
}

impl ClusterChanges {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), events: None }
    }

    /// Waits until the cluster has changed or could have: from [`SHORTEST`] to [`LONGEST`] after this call. Calls
    /// `tick` now and then, until it returns false.
    pub async fn wait(&mut self, tick: &mut dyn FnMut() -> bool) {
        let began = Instant::now();
        let query = EventQuery { follow: true, start: EventStart::New, ..EventQuery::default() };
        let events = self.events.get_or_insert_with(|| self.client.cluster().events(query));
        let (mut until, mut is_lost, mut next_tick) = (began + LONGEST, false, began);
        {
            // One future for all ticks: it may need longer to find another manager.
            let mut next = pin!(events.next());
            let mut has_changed = false;
            while Instant::now() < until {
                if Instant::now() >= next_tick {
                    if !tick() {
                        return;
                    }
                    next_tick += TICK;
                }
                tokio::select! {
                    message = &mut next, if !has_changed => {
                        has_changed = true;
                        match message {
                            // The first message says that events are read from now on.
                            Ok(Some(_)) => until = began + SHORTEST,
                            Ok(None) | Err(_) => is_lost = true,
                        }
                    }
                    () = sleep_until(until.min(next_tick)) => {}
                }
            }
        }
        if is_lost {
            self.events = None;
        }
    }
}

/// A row as it was printed.
struct PrintedRow {
    key: String,
    /// Its first cell.
    name: String,
    compared: Vec<String>,
}

/// What was printed last of each row. An image is a row of several nodes, so a key alone does not name a row.
#[derive(Default)]
struct PrintedRows(BTreeMap<(String, usize), PrintedRow>);

#[derive(Debug, Default, PartialEq, Eq)]
struct RowDifference {
    /// Positions of new rows and of others than before.
    changed: Vec<usize>,
    /// Keys and names of rows that are gone.
    removed: Vec<(String, String)>,
}

impl PrintedRows {
    fn update(&mut self, rows: Vec<PrintedRow>) -> RowDifference {
        let (mut difference, mut present) = (RowDifference::default(), BTreeMap::new());
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (position, row) in rows.into_iter().enumerate() {
            let count = counts.entry(row.key.clone()).or_default();
            *count += 1;
            let id = (row.key.clone(), *count);
            if self.0.remove(&id).is_none_or(|before| before.compared != row.compared) {
                difference.changed.push(position);
            }
            present.insert(id, row);
        }
        let gone = std::mem::replace(&mut self.0, present);
        difference.removed = gone.into_values().map(|row| (row.key, row.name)).collect();
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, cell: &str) -> PrintedRow {
        PrintedRow { key: key.into(), name: key.to_uppercase(), compared: vec![cell.into()] }
    }

    #[test]
    fn only_other_rows_are_printed_again() {
        let mut printed = PrintedRows::default();
        for (rows, changed, removed) in [
            (vec![row("a", "1"), row("b", "1")], vec![0, 1], vec![]),
            (vec![row("a", "1"), row("b", "1")], vec![], vec![]),
            (vec![row("b", "1"), row("a", "2")], vec![1], vec![]),
            (vec![row("a", "2"), row("a", "2")], vec![1], vec!["B"]),
            (vec![row("a", "2"), row("a", "3")], vec![1], vec![]),
            (vec![], vec![], vec!["A", "A"]),
            (vec![row("a", "3")], vec![0], vec![]),
        ] {
            let found = printed.update(rows);
            let names: Vec<&str> = found.removed.iter().map(|(_, name)| name.as_str()).collect();
            assert_eq!((found.changed, names), (changed, removed));
        }
    }
}
