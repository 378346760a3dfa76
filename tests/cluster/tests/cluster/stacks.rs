//! Stacks of Compose files with the CLI and a real manager, without nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use warren_testkit::cli::{CommandOutput, WarrenCli};

use crate::fixture::ManagerFixture;
use crate::wrong_inputs::write_private;

/// For the deployment of an unchanged stack of 100 services.
const LIMIT: Duration = Duration::from_secs(5);
/// Files of the kind that projects publish, whose meaning the tests of the crate compare.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pkg/compose/tests/compose/examples");

/// A manager, and the CLI in a directory.
struct User {
    warren: WarrenCli,
    directory: tempfile::TempDir,
    world: ManagerFixture,
}

impl User {
    async fn new() -> Self {
        let world = ManagerFixture::new().await;
        let directory = tempfile::tempdir().unwrap();
        let contexts = directory.path().join("contexts.toml");
        let text =
            format!("current = \"here\"\n[[contexts]]\nname = \"here\"\nsocket = {:?}\n", world.socket());
        write_private(&contexts, &text);
        Self { warren: WarrenCli::new(&contexts), directory, world }
    }

    /// Runs a command in `directory`, which must succeed.
    async fn ok(&self, directory: &Path, arguments: &[&str]) -> CommandOutput {
        let mut command = self.warren.command(arguments);
        command.current_dir(directory).env("GRAFANA_PASSWORD", "secret");
        // Paths beside the files are on the node of the manager.
        command.env("WARREN_DATA_DIR", self.world.data_dir());
        let run = move || warren_testkit::tool::output(command, Duration::from_secs(60)).unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{arguments:?} in {}: {stderr}", directory.display());
        CommandOutput { command: arguments.join(" "), code: 0, stdout, stderr }
    }
}

/// Copies a directory. No task ever becomes ready here, so that nothing waits for that.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy(&entry, &target);
        } else {
            let text = fs::read_to_string(&entry).unwrap();
            let text = text.replace("service_healthy", "service_started");
            let text = text.replace("service_completed_successfully", "service_started");
            fs::write(target, text).unwrap();
        }
    }
}

fn lines<'a>(text: &'a str, end: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with("service ") && line.ends_with(end)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_files_are_deployed_and_then_unchanged() {
    let user = User::new().await;
    user.ok(user.directory.path(), &["network", "create", "web-proxy"]).await;
    let mut examples: Vec<PathBuf> =
        fs::read_dir(EXAMPLES).unwrap().map(|entry| entry.unwrap().path()).collect();
    examples.sort();
    let mut deployed = 0;
    for example in examples {
        if fs::read_to_string(example.join("expected.txt")).unwrap().starts_with("refused:") {
            continue;
        }
        let directory = user.directory.path().join(example.file_name().unwrap());
        copy(&example, &directory);
        let first = user.ok(&directory, &["deploy", "--detach", "example"]).await;
        let created = lines(&first.stderr, " created").len();
        assert!(created > 0, "{first}");
        let again = user.ok(&directory, &["deploy", "--detach", "example"]).await;
        assert_eq!(lines(&again.stderr, " is unchanged").len(), created, "{again}");
        assert!(!again.stderr.contains("created") && !again.stderr.contains("updated"), "{again}");
        user.ok(&directory, &["stack", "rm", "example", "--volumes"]).await;
        deployed += 1;
    }
    assert!(deployed >= 20, "{deployed}");
    assert_eq!(user.ok(user.directory.path(), &["stack", "ls", "-q"]).await.stdout, "");
}

/// 100 services of two replicas: most of it is the start of the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_deployment_of_many_services_is_fast() {
    let user = User::new().await;
    let service = |i: usize| {
        let previous = i.saturating_sub(1);
        let after = if i == 0 { String::new() } else { format!(", depends_on: [s{previous}]") };
        format!(
            "  s{i}: {{image: 'web:1', scale: 2, environment: {{A: b}}, ports: ['{}:80']{after}}}\n",
            20_000 + i
        )
    };
    let text: String = (0..100).map(service).collect();
    fs::write(user.directory.path().join("compose.yaml"), format!("services:\n{text}")).unwrap();
    let deploy = ["deploy", "--detach", "many"];
    let begin = Instant::now();
    user.ok(user.directory.path(), &deploy).await;
    let first = begin.elapsed();
    // On an idle machine a tenth of the limit, as a debug build; on a loaded one, the best of some counts.
    let mut unchanged = Duration::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        let again = user.ok(user.directory.path(), &deploy).await;
        unchanged = unchanged.min(begin.elapsed());
        assert_eq!(lines(&again.stderr, " is unchanged").len(), 100, "{again}");
        if unchanged < LIMIT {
            break;
        }
    }
    println!("100 services: deployed in {first:?}, unchanged in {unchanged:?}");
    assert!(unchanged < LIMIT, "{unchanged:?}");
}
