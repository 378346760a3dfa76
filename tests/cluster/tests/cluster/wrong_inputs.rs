//! Wrong inputs of the CLI, with the text that it prints. `wrong_inputs.txt` has the command lines and the texts;
//! `WARREN_UPDATE_GOLDEN=1` writes the texts of this version for review.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::interval;
use warren_client::Client;
use warren_security::Role;
use warren_testkit::cli::WarrenCli;
use warren_types::{
    NodeDescription, Placement, Protocol, PublishMode, PublishedPort, ServiceMode, ServiceSpec,
};

use crate::fixture::{CallerKind, ManagerFixture, description, new_id, spec};
use crate::worker::ScriptedWorker;

/// As many as the table must have.
const MIN_INPUTS: usize = 60;
/// Marks a command line in the table.
const PROMPT: &str = "$ warren ";
/// Stands for the directory with the files below, which is another one in each run.
const SCRATCH: &str = "{scratch}";

fn table() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/wrong_inputs.txt")
}

/// The arguments of a command line: words between blanks, or between single quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            other => words.last_mut().unwrap().push(other),
        }
    }
    words
}

/// Objects that the inputs conflict with.
async fn create_objects(client: &Client) {
    let web = ServiceSpec {
        mode: ServiceMode::Replicated { replicas: 0 },
        ports: vec![PublishedPort {
            host_ip: None,
            host_port: 8088,
            container_port: 80,
            protocol: Protocol::Tcp,
            mode: PublishMode::Host,
            prefer_local: false,
            client_affinity: false,
        }],
        ..spec("web", 0)
    };
    client.services().create(new_id(), &web).await.unwrap();
    let nowhere = vec!["node.labels.agents==yes".parse().unwrap()];
    let agents = ServiceSpec {
        mode: ServiceMode::Global,
        placement: Placement { constraints: nowhere, ..Placement::default() },
        ..spec("agents", 0)
    };
    client.services().create(new_id(), &agents).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_input_gets_its_text_and_changes_nothing() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let labels = [("rack".to_owned(), "7".to_owned())].into();
    let channel = world.channel(CallerKind::Certified(Role::Worker)).await;
    let described = NodeDescription { labels, ..description() };
    let mut worker = ScriptedWorker::connect_as(channel, &described, None).await.welcomed().await;
    create_objects(&client).await;
    worker.sync().await;
    let directory = tempfile::tempdir().unwrap();
    let scratch = directory.path().to_str().unwrap().to_owned();
    let contexts = directory.path().join("contexts.toml");
    let text = format!("current = \"here\"\n[[contexts]]\nname = \"here\"\nsocket = {:?}\n", world.socket());
    write_private(&contexts, &text);
    std::fs::write(directory.path().join("env"), "A=1\nexport B=2\n").unwrap();
    std::fs::write(directory.path().join("empty"), "").unwrap();
    let warren = WarrenCli::new(&contexts).settling();

    let expected = std::fs::read_to_string(table()).unwrap();
    let inputs: Vec<&str> = expected.lines().filter_map(|line| line.strip_prefix(PROMPT)).collect();
    assert!(inputs.len() >= MIN_INPUTS, "{} inputs", inputs.len());
    let before = client.cluster().info().await.unwrap().digest;
    let mut found = String::new();
    for line in inputs {
        let arguments = words(&line.replace(SCRATCH, &scratch));
        let program = warren.clone();
        let run = move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            program.run(&arguments)
        };
        // The node must stay up, since its loss would be a change.
        let (mut running, mut beats) = (tokio::task::spawn_blocking(run), interval(Duration::from_secs(1)));
        let ran = loop {
            tokio::select! {
                ran = &mut running => break ran.unwrap(),
                _ = beats.tick() => worker.heartbeat().await,
            }
        };
        assert_ne!(ran.code, 0, "{ran}");
        assert_eq!(ran.stdout, "", "{ran}");
        let text = ran.stderr.replace(&scratch, SCRATCH);
        let text: String = text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
        found += &format!("{PROMPT}{line}\n{text}[exit code {}]\n\n", ran.code);
        let after = client.cluster().info().await.unwrap().digest;
        assert_eq!(after, before, "`warren {line}` changed the state");
        worker.sync().await;
    }
    if std::env::var_os("WARREN_UPDATE_GOLDEN").is_some() {
        std::fs::write(table(), &found).unwrap();
        return;
    }
    for (found, expected) in found.split("\n\n").zip(expected.split("\n\n")) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

/// The CLI refuses a contexts file that others may read.
pub fn write_private(file: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}
