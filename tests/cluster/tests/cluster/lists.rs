//! `--watch` of the program, on a pipe: the list once, then a row for each change, also after the loss of its manager.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use warren_proto::v1;
use warren_testkit::cli::WarrenCli;

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::worker::{ScriptedWorker, report};
use crate::wrong_inputs::write_private;

/// A program that watches a list, until this is dropped.
struct WatchedList {
    _program: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl WatchedList {
    fn start(warren: &WarrenCli, arguments: &[&str]) -> Self {
        let mut command = Command::from(warren.command(arguments));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut program = command.spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        Self { _program: program, lines }
    }

    /// The next line.
    async fn next(&mut self) -> String {
        timeout(WAIT_DEADLINE, self.lines.next_line()).await.expect("a line in time").unwrap().unwrap()
    }

    /// Reads lines until one contains all of `parts`; returns how many others came before.
    async fn until(&mut self, parts: &[&str]) -> usize {
        let mut others = 0;
        loop {
            let line = self.next().await;
            if parts.iter().all(|part| line.contains(part)) {
                return others;
            }
            others += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watched_list_prints_each_row_that_changes() {
    let mut world = ManagerFixture::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    client.services().create(new_id(), &spec("idle", 0)).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let contexts = directory.path().join("contexts.toml");
    let text = format!("current = \"here\"\n[[contexts]]\nname = \"here\"\nsocket = {:?}\n", world.socket());
    write_private(&contexts, &text);
    let warren = WarrenCli::new(&contexts);

    let mut table = WatchedList::start(&warren, &["service", "ls", "-w"]);
    let mut documents = WatchedList::start(&warren, &["service", "ls", "--watch", "-o", "json"]);
    assert!(table.next().await.starts_with("NAME "));
    table.until(&["web", "0/1"]).await;
    documents.until(&["\"name\":\"web\""]).await;
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let id = worker.tasks.keys().next().unwrap().clone();
    worker.report(vec![report(&id, v1::TaskState::Running)]).await;
    // The other rows are printed at most once, in the first list.
    assert!(table.until(&["web", "1/1"]).await <= 2);
    client.services().remove("idle", None, false).await.unwrap();
    documents.until(&["{\"removed\":"]).await;

    world.stop().await;
    world.start(false).await.unwrap();
    world.local().await.services().create(new_id(), &spec("api", 0)).await.unwrap();
    table.until(&["api", "0/0"]).await;
    documents.until(&["\"name\":\"api\""]).await;

    // The kind of an object is found by its name.
    let shown = tokio::task::spawn_blocking(move || warren.json(&["inspect", "api"])).await.unwrap();
    assert_eq!(shown["name"], "api");
}
