//! `warren top`: reads the cluster and the keys, and draws the model of `top` until it ends.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use warren_client::{Client, Error, LogOptions, LogTarget, TaskFilter};

use crate::args::{GlobalArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::signals::{LocalSignals, killed};
use crate::top::{ClusterPicture, LogEvent, TopAction, TopModel, draw};
use crate::view::node::NodeView;
use crate::view::now;
use crate::view::top::TaskUsageRow;
use crate::wait::is_transient;

const WHAT: &str = "nodes and tasks are not shown";
/// Nodes report usage every five seconds, each at its own time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// With many tasks the pauses are this many times as long as it takes to read them.
const PAUSE_FACTOR: u32 = 10;
/// Lines of a log that were written before it is opened.
const LOG_TAIL: u64 = 200;
/// Events of a log that wait to be drawn: a fast program is slowed down by nobody, its lines wait on its node.
const LOG_QUEUE: usize = 256;

type Pictures = mpsc::Receiver<Result<ClusterPicture, PictureError>>;

/// Why the cluster was not read.
enum PictureError {
    Client(Error),
    /// The answer of the manager cannot be shown.
    Answer(CommandError),
}

/// The terminal, which is restored when this is dropped; on a panic by the hook of ratatui.
struct TopScreen(DefaultTerminal);

impl TopScreen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }

    fn draw(&mut self, model: &TopModel) -> Result<(), CommandError> {
        let drawn = self.0.draw(|frame| draw::draw(frame, model));
        drawn.map(|_| ()).map_err(terminal_failure)
    }
}

impl Drop for TopScreen {
    fn drop(&mut self) {
        // A closed terminal is ignored.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// The log that is read; dropping it ends the call.
struct LogReader {
    events: mpsc::Receiver<LogEvent>,
    _reader: JoinSet<()>,
}

pub async fn run(global: &GlobalArgs) -> Result<ExitCode, CommandError> {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !is_terminal || !matches!(global.output, OutputFormat::Table | OutputFormat::Wide) {
        let why = "`warren top` needs a terminal, and prints no documents";
        let hint = "use `warren service top --once`, `warren service ps SERVICE` and `warren node ls`";
        return Err(CommandError::new(ExitKind::Usage, WHAT, why, hint));
    }
    let client = connect(global, WHAT).await?;
    let mut model = TopModel::new(read(&client).await.map_err(picture_failure)?);
    let mut signals = LocalSignals::new().map_err(terminal_failure)?;
    let mut screen = TopScreen::open().map_err(terminal_failure)?;
    let (mut keys, mut log) = (read_keys(), None);
    let (mut pictures, _reader) = follow(client.clone());
    loop {
        screen.draw(&model)?;
        let action = tokio::select! {
            biased;
            number = signals.ending.next() => return Ok(ExitCode::from(killed(number))),
            event = keys.recv() => match event {
                Some(Ok(Event::Key(key))) => model.press(key),
                // The next picture has the new size.
                Some(Ok(_)) => TopAction::Continue,
                Some(Err(error)) => return Err(terminal_failure(error)),
                None => TopAction::Quit,
            },
            picture = pictures.recv() => {
                match picture {
                    Some(Ok(picture)) => model.renew(picture),
                    Some(Err(PictureError::Client(error))) if is_transient(&error) => {
                        model.warn(&error.to_string());
                    }
                    Some(Err(error)) => return Err(picture_failure(error)),
                    None => {}
                }
                TopAction::Continue
            }
            event = next_event(&mut log) => {
                if let Some(pane) = model.log_mut() {
                    pane.add(event);
                    let waiting = log.as_mut().map(|log: &mut LogReader| &mut log.events);
                    waiting.into_iter().for_each(|events| {
                        std::iter::from_fn(|| events.try_recv().ok()).take(LOG_QUEUE).for_each(|event| pane.add(event));
                    });
                }
                TopAction::Continue
            }
        };
        match action {
            TopAction::Continue => {}
            TopAction::Quit => return Ok(ExitCode::SUCCESS),
            TopAction::ReadLog(task) => log = Some(read_log(client.clone(), task)),
            TopAction::EndLog => log = None,
        }
    }
}

fn terminal_failure(error: io::Error) -> CommandError {
    CommandError::new(ExitKind::Failed, WHAT, error, "try another terminal")
}

fn picture_failure(error: PictureError) -> CommandError {
    match error {
        PictureError::Client(error) => from_client(WHAT, error),
        PictureError::Answer(error) => error,
    }
}

async fn read(client: &Client) -> Result<ClusterPicture, PictureError> {
    let info = client.cluster().info().await.map_err(PictureError::Client)?;
    let nodes = client.nodes().list().await.map_err(PictureError::Client)?;
    let filter = TaskFilter { current: true, ..TaskFilter::default() };
    let tasks = client.tasks().list(filter).await.map_err(PictureError::Client)?;
    let nodes = nodes.into_iter().map(NodeView::try_from).collect::<Result<_, _>>();
    Ok(ClusterPicture {
        managers: info.managers,
        leader: info.leader_name,
        read_at: now(),
        nodes: nodes.map_err(PictureError::Answer)?,
        tasks: TaskUsageRow::all(tasks).map_err(PictureError::Answer)?,
    })
}

/// Reads the cluster again and again, until the second part of the answer is dropped.
fn follow(client: Client) -> (Pictures, JoinSet<()>) {
    let (sender, pictures) = mpsc::channel(1);
    let mut reader = JoinSet::new();
    reader.spawn(async move {
        let mut pause = REFRESH_INTERVAL;
        loop {
            sleep(pause).await;
            let began = Instant::now();
            let picture = read(&client).await;
            pause = REFRESH_INTERVAL.max(began.elapsed() * PAUSE_FACTOR);
            if sender.send(picture).await.is_err() {
                return;
            }
        }
    });
    (pictures, reader)
}

/// The keys. A read of a terminal cannot be interrupted, so it has a thread of its own, which ends with the program.
fn read_keys() -> mpsc::UnboundedReceiver<io::Result<Event>> {
    let (sender, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if sender.send(event).is_err() || is_last {
                return;
            }
        }
    });
    keys
}

fn read_log(client: Client, task: String) -> LogReader {
    let (sender, events) = mpsc::channel(LOG_QUEUE);
    let mut reader = JoinSet::new();
    reader.spawn(async move {
        let last = match send_log(&client, task, &sender).await {
            Ok(()) => LogEvent::End,
            Err(error) => LogEvent::Failed(error.to_string()),
        };
        // A closed channel means that the log is not shown any more.
        let _ = sender.send(last).await;
    });
    LogReader { events, _reader: reader }
}

async fn send_log(client: &Client, task: String, sender: &mpsc::Sender<LogEvent>) -> Result<(), Error> {
    let options = LogOptions { follow: true, tail: Some(LOG_TAIL), ..LogOptions::default() };
    let mut entries = client.logs().read(LogTarget::Task(task), options).await?;
    while let Some(entry) = entries.next().await? {
        // An entry kind of a later version is left out.
        if let Some(entry) = entry.entry
            && sender.send(LogEvent::Entry(entry)).await.is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// The next event of the log; never without one.
async fn next_event(log: &mut Option<LogReader>) -> LogEvent {
    if let Some(reader) = log {
        match reader.events.recv().await {
            Some(event) => return event,
            None => *log = None,
        }
    }
    std::future::pending().await
}
