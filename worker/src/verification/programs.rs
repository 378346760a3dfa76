//! Checks of users: a command of the node, or a container that is removed afterwards.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{self, killpg};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use warren_container_logs::{OutputEntry, OutputReader, ReadOptions};
use warren_runtime::{
    ContainerId, ContainerOwner, ContainerSpec, Error, HostFile, NetworkMode, OutputTarget, ProcessExit,
    ProcessState, Reference, Runtime, Signal,
};
use warren_types::verification::MAX_CHECK_OUTPUT;
use warren_types::{Bytes, ImageReference, NodeId};

use super::{Finding, failed, passed};

/// The owner of the containers of checks; no id of a task.
const OWNER: &str = "verification";
/// Interval at which the end of a container is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the output of an ended command may take: a process that it left may keep it open.
const OUTPUT_DELAY: Duration = Duration::from_millis(500);
/// How long a killed container may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines of the output of a container that are read.
const TAIL_LINES: u64 = 100;
/// Files of the node that a container in its network needs.
const NETWORK_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// Runs the shell command, as this process.
pub(super) async fn run_command(command: &str, within: Duration) -> Finding {
    let spawned = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return failed(format!("/bin/sh cannot be started: {error}")),
    };
    let group = ProcessGroup(child.id());
    let output = OutputTail::default();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reading = {
        let (one, other) = (output.clone(), output.clone());
        tokio::spawn(async move { tokio::join!(one.read(stdout), other.read(stderr)) })
    };
    let ended = timeout(within, child.wait()).await;
    // What it left keeps the output open and the node busy.
    drop(group);
    timeout(OUTPUT_DELAY, reading).await.map(drop).ok();
    let output = output.text();
    match ended {
        Ok(Ok(status)) => match (status.success(), status.code()) {
            (true, _) => passed(output),
            (false, Some(code)) => failed(with_output(&format!("exited with code {code}"), &output)),
            (false, None) => failed(with_output(&status.to_string(), &output)),
        },
        Ok(Err(error)) => failed(error.to_string()),
        Err(_) => failed(with_output(&format!("did not end within {within:?}"), &output)),
    }
}

fn with_output(what: &str, output: &str) -> String {
    match output.trim_end() {
        "" => what.to_owned(),
        output => format!("{what}: {output}"),
    }
}

/// All processes of a command; killed when dropped.
struct ProcessGroup(Option<u32>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let group = self.0.and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group {
            // Without processes there is no group.
            killpg(Pid::from_raw(group), signal::Signal::SIGKILL).ok();
        }
    }
}

/// The last bytes of an output. Clones share it.
#[derive(Clone, Default)]
struct OutputTail(Arc<StdMutex<Vec<u8>>>);

impl OutputTail {
    async fn read(&self, source: Option<impl AsyncRead + Unpin>) {
        let Some(mut source) = source else { return };
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = source.read(&mut buffer).await {
            self.add(&buffer[..length]);
        }
    }

    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let excess = kept.len().saturating_sub(MAX_CHECK_OUTPUT);
        kept.drain(..excess);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

/// Runs the containers of checks.
pub(crate) struct CheckContainers {
    pub runtime: Arc<dyn Runtime>,
    /// This node.
    pub node: NodeId,
    /// The program that writes their output.
    pub logger: PathBuf,
    /// Directory of their output while they run.
    pub output_dir: PathBuf,
    /// One at a time: the next run of a check has the same container.
    pub lock: Mutex<()>,
}

impl CheckContainers {
    /// Runs the image of a check in a container in the network of the node, and removes it.
    pub async fn run(
        &self,
        name: &str,
        image: &ImageReference,
        args: &[String],
        within: Duration,
    ) -> Finding {
        let _one = self.lock.lock().await;
        let id = container_id(self.node, name);
        let found = self.run_once(&id, image, args, within).await;
        if let Err(error) = self.remove(&id).await {
            tracing::warn!(container = %id, %error, "the container of a check was not removed");
        }
        found.unwrap_or_else(failed)
    }

    async fn run_once(
        &self,
        id: &ContainerId,
        image: &ImageReference,
        args: &[String],
        within: Duration,
    ) -> Result<Finding, String> {
        let text = |error: Error| error.to_string();
        self.remove(id).await.map_err(text)?;
        let output = self.output_dir.join(id.as_str());
        tokio::fs::create_dir_all(&output).await.map_err(|error| error.to_string())?;
        let image = Reference::parse(image.as_str()).map_err(|error| error.to_string())?;
        let owner = ContainerOwner { task: OWNER.to_owned(), attempt: 1, spec_hash: String::new() };
        let files = NETWORK_FILES.iter().filter(|path| std::path::Path::new(path).exists());
        let spec = ContainerSpec {
            args: (!args.is_empty()).then(|| args.to_vec()),
            network: NetworkMode::Host,
            files: files.map(|path| HostFile { source: path.into(), target: path.into() }).collect(),
            log: OutputTarget::Binary {
                program: self.logger.clone(),
                dir: output.clone(),
                max_size: Bytes(64 << 10),
                max_files: 2,
            },
            ..ContainerSpec::new(id.clone(), owner, image)
        };
        self.runtime.ensure_created(&spec).await.map_err(text)?;
        self.runtime.start(id).await.map_err(text)?;
        let ended = timeout(within, self.wait(id)).await;
        if ended.is_err() {
            self.kill(id).await.map_err(text)?;
        }
        // The logger has written everything then.
        self.runtime.delete_process(id).await.map_err(text)?;
        let output = read_output(&output).await;
        Ok(match ended {
            Ok(Ok(exit)) if exit.code == 0 => passed(output),
            Ok(Ok(exit)) => failed(with_output(&format!("exited with code {}", exit.code), &output)),
            Ok(Err(why)) => failed(why),
            Err(_) => failed(with_output(&format!("did not end within {within:?}"), &output)),
        })
    }

    async fn wait(&self, id: &ContainerId) -> Result<ProcessExit, String> {
        loop {
            let found = self.runtime.inspect(id).await.map_err(|error| error.to_string())?;
            match found.map(|found| found.process) {
                Some(ProcessState::Stopped(exit)) => return Ok(exit),
                Some(ProcessState::Absent) | None => return Err("its container has disappeared".to_owned()),
                Some(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    async fn kill(&self, id: &ContainerId) -> Result<(), Error> {
        if self.runtime.signal(id, Signal::KILL).await? {
            timeout(KILL_TIMEOUT, self.wait(id)).await.map(drop).ok();
        }
        Ok(())
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), Error> {
        if let Some(found) = self.runtime.inspect(id).await? {
            if matches!(found.process, ProcessState::Running { .. } | ProcessState::Created { .. }) {
                self.kill(id).await?;
            }
            self.runtime.delete_process(id).await?;
            self.runtime.remove(id).await?;
        }
        tokio::fs::remove_dir_all(self.output_dir.join(id.as_str())).await.ok();
        Ok(())
    }

    /// Removes the containers that an earlier agent left.
    pub async fn remove_leftovers(&self) {
        let _one = self.lock.lock().await;
        let found = self.runtime.list().await.unwrap_or_default();
        let is_left = |owner: &ContainerOwner| owner.task == OWNER;
        for left in found.into_iter().filter(|found| found.owner.as_ref().is_some_and(is_left)) {
            if let Err(error) = self.remove(&left.id).await {
                tracing::warn!(container = %left.id, %error, "the container of a check was not removed");
            }
        }
    }
}

/// The names of checks allow more characters than ids. OCI runtimes of two nodes on one machine may share their state.
fn container_id(node: NodeId, check: &str) -> ContainerId {
    let hash: String =
        Sha256::digest(format!("{node}.{check}")).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    ContainerId::parse(&format!("verify-{hash}")).expect("a word and hexadecimal digits")
}

async fn read_output(dir: &std::path::Path) -> String {
    let tail = OutputTail::default();
    let options = ReadOptions { tail: Some(TAIL_LINES), ..ReadOptions::default() };
    if let Ok(mut reader) = OutputReader::open(dir, options).await {
        while let Ok(Some(entries)) = reader.next().await {
            for entry in entries {
                if let OutputEntry::Line(line) = entry {
                    tail.add(&line.text);
                    tail.add(if line.partial { b"" } else { b"\n" });
                }
            }
        }
    }
    tail.text()
}

#[cfg(test)]
mod tests {
    use warren_runtime::fake::{ContainerScript, FakeRuntime};
    use warren_types::Id;
    use warren_types::NodeCheckOutcome::{Failed, Passed};

    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn command_is_judged_by_its_exit_code_and_keeps_its_last_output() {
        assert_eq!(run_command("echo fine", WITHIN).await, (Passed, "fine\n".to_owned()));
        let (outcome, message) = run_command("echo out; echo wrong >&2; exit 3", WITHIN).await;
        assert_eq!(outcome, Failed);
        assert!(message.starts_with("exited with code 3: ") && message.contains("wrong"), "{message}");
        let (_, message) = run_command("seq 1 20000; exit 1", WITHIN).await;
        assert!(message.ends_with("19999\n20000") && message.len() < MAX_CHECK_OUTPUT + 100, "{message}");
        let (outcome, message) = run_command("kill -9 $$", WITHIN).await;
        assert!(outcome == Failed && message.contains("signal: 9"), "{message}");
    }

    #[tokio::test]
    async fn command_and_what_it_started_are_killed_after_the_timeout() {
        let command = "sleep 600 & echo $!; wait";
        let mut found = None;
        // A loaded machine starts a shell late.
        for within in [300, 3_000, 30_000].map(Duration::from_millis) {
            let (outcome, message) = run_command(command, within).await;
            assert_eq!(outcome, Failed);
            let output = message.strip_prefix(&format!("did not end within {within:?}")).unwrap();
            found = output.strip_prefix(": ").map(|pid| pid.trim().parse::<i32>().unwrap());
            if found.is_some() {
                break;
            }
        }
        let pid = found.expect("the shell prints the process ID");
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        timeout(WITHIN, async {
            while !is_gone() {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn container_is_judged_by_its_exit_code_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = FakeRuntime::new();
        let containers = CheckContainers {
            runtime: Arc::new(runtime.clone()),
            node: NodeId(Id(1)),
            logger: "/bin/true".into(),
            output_dir: dir.path().join("checks"),
            lock: Mutex::default(),
        };
        let image: ImageReference = "acme/check:1".parse().unwrap();
        let reference = Reference::parse(image.as_str()).unwrap();
        let run = async || containers.run("gpu", &image, &[], WITHIN).await;
        assert_eq!(run().await.0, Failed, "the image is missing");
        runtime.add_image(&reference);
        let script = |exit_after| ContainerScript { exit_after, ..ContainerScript::default() };
        for (exit_after, outcome, message) in [
            (Some((Duration::from_secs(1), 0)), Passed, ""),
            (Some((Duration::from_secs(1), 1)), Failed, "exited with code 1"),
            (None, Failed, "did not end within 20s"),
        ] {
            runtime.script_image(&reference, script(exit_after));
            assert_eq!(run().await, (outcome, message.to_owned()));
            assert!(runtime.list().await.unwrap().is_empty());
        }
    }
}
