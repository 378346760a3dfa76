//! A private containerd of the test: other instances on the machine do not see what it stores or runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::ChildProcess;
use crate::scratch::ScratchDir;
use crate::tool;
use crate::wait::try_eventually;

/// Opening its database and loading its plugins takes a quarter of a second on an idle machine.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// A containerd with its own root, state and socket; dropping it ends it and every container it runs.
///
/// All containerds of a machine share one thing: runc keeps its states by namespace and container id in one
/// directory, so tests that run at the same time must use different container ids.
#[derive(Debug)]
pub struct TestContainerd {
    // Declared before the directory: fields are dropped in order, and dropping the directory ends what is
    // left.
    process: ChildProcess,
    scratch: ScratchDir,
    root: PathBuf,
}

impl TestContainerd {
    /// Starts the machine's `containerd` and waits until it answers.
    #[must_use]
    #[track_caller]
    pub fn start() -> TestContainerd {
        let scratch = ScratchDir::new();
        let root = scratch.path().join("root");
        TestContainerd::start_in(scratch, root)
    }

    /// As [`TestContainerd::start`], with its data in a directory of the caller, for example on another disk.
    #[must_use]
    #[track_caller]
    pub fn start_on(root: &Path) -> TestContainerd {
        TestContainerd::start_in(ScratchDir::new(), root.to_owned())
    }

    #[track_caller]
    fn start_in(scratch: ScratchDir, root: PathBuf) -> TestContainerd {
        let process = spawn(scratch.path(), &root);
        let containerd = TestContainerd { process, scratch, root };
        containerd.wait_ready();
        containerd
    }

    /// The socket it listens on.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_in(self.scratch.path())
    }

    /// The directory that holds everything it stores.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Runs `ctr` with `arguments` on it; the command must succeed.
    #[track_caller]
    pub fn ctr<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        match tool::stdout(ctr(&self.socket(), arguments), tool::DEADLINE) {
            Ok(text) => text,
            Err(error) => panic!("{error}; the end of containerd's log:\n{}", self.process.log_tail(20)),
        }
    }

    /// Runs `command` in a container of `image` in `namespace` and returns its standard output; it must exit with 0.
    /// The image needs a shell.
    ///
    /// The container writes into files of a bind mount. `ctr run` and `ctr tasks exec` lose output: when the
    /// process has ended, the client closes its end of the FIFO without reading to the end (`task.Delete` of
    /// containerd 1.6).
    ///
    /// # Panics
    /// If the container cannot run, or exits with another status; with its standard error.
    #[must_use]
    #[track_caller]
    pub fn container_stdout(&self, namespace: &str, image: &str, id: &str, command: &[&str]) -> String {
        let output = ScratchDir::new();
        let mount = format!("type=bind,src={},dst=/output,options=rbind:rw", output.path().display());
        let run = ["--namespace", namespace, "run", "--rm", "--null-io", "--mount", &mount, image, id];
        let redirected = ["sh", "-c", "exec \"$@\" >/output/stdout 2>/output/stderr", "sh"];
        let arguments = run.iter().chain(&redirected).chain(command).copied();
        let ended = tool::stdout(ctr(&self.socket(), arguments), tool::DEADLINE);
        let read = |name: &str| std::fs::read(output.path().join(name)).unwrap_or_default();
        let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
        match ended {
            Ok(_) => text("stdout"),
            Err(error) => panic!(
                "{error}; the container's standard error: {:?}; the end of containerd's log:\n{}",
                text("stderr"),
                self.process.log_tail(20)
            ),
        }
    }

    /// The process, to pause it, kill it or read its log.
    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    /// Starts it again on the same directories, after its process was killed.
    #[track_caller]
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = spawn(self.scratch.path(), &self.root);
        self.wait_ready();
    }

    #[track_caller]
    fn wait_ready(&self) {
        let ready = try_eventually(READY_DEADLINE, "containerd's first answer", || {
            tool::stdout(ctr(&self.socket(), ["version"]), tool::DEADLINE).map_err(|error| error.to_string())
        });
        if let Err(error) = ready {
            panic!("{error}; the end of its log:\n{}", self.process.log_tail(20));
        }
    }
}

/// A command that runs `ctr` on the containerd behind `socket`.
pub fn ctr<'a>(socket: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket).args(arguments);
    command
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("containerd.sock")
}

fn spawn(directory: &Path, root: &Path) -> ChildProcess {
    // By default, containerd waits a few seconds for the state of a task, which a loaded machine exceeds.
    let config = format!(
        "version = 2\nroot = \"{2}\"\nstate = \"{0}/state\"\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n\
         [grpc]\naddress = \"{1}\"\n\
         [timeouts]\n\"io.containerd.timeout.task.state\" = \"60s\"\n\
         \"io.containerd.timeout.shim.load\" = \"60s\"\n",
        directory.display(),
        socket_in(directory).display(),
        root.display(),
    );
    let path = directory.join("containerd.toml");
    std::fs::write(&path, config).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    let mut command = Command::new("containerd");
    command.arg("--config").arg(&path);
    ChildProcess::spawn("containerd", command, &directory.join("containerd.log"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup;
    use crate::image::TestImage;

    fn import(
        containerd: &TestContainerd,
        scratch: &ScratchDir,
        name: &str,
        archive: &crate::image::PackedImage,
    ) {
        let path = scratch.path().join(name);
        archive.write(&path).unwrap();
        containerd.ctr(["images", "import", "--digests", path.to_str().unwrap()]);
    }

    #[test]
    fn images_of_both_formats_run() {
        let containerd = TestContainerd::start();
        let scratch = ScratchDir::new();
        let image = |name: &str| {
            TestImage::busybox(&format!("warren.local/{name}:1")).environment(["PATH=/bin", "A=b"])
        };
        import(&containerd, &scratch, "oci.tar", &image("oci").oci_archive());
        import(&containerd, &scratch, "docker.tar", &image("docker").docker_archive());
        for name in ["oci", "docker"] {
            let reference = format!("warren.local/{name}:1");
            let script = "echo $A; stat -c %a /tmp";
            let output = containerd.container_stdout("default", &reference, name, &["sh", "-c", script]);
            assert_eq!(output, "b\n1777\n");
        }
    }

    #[test]
    fn container_output_longer_than_a_pipe_is_returned_whole() {
        let containerd = TestContainerd::start();
        let scratch = ScratchDir::new();
        import(&containerd, &scratch, "oci.tar", &TestImage::busybox("warren.local/b:1").oci_archive());
        let numbers = containerd.container_stdout("default", "warren.local/b:1", "long", &["seq", "300000"]);
        assert!(
            numbers.lines().eq((1..=300_000).map(|number| number.to_string())),
            "{} bytes",
            numbers.len()
        );
    }

    #[test]
    #[should_panic(expected = "no-such-file")]
    fn failed_container_is_reported_with_its_standard_error() {
        let containerd = TestContainerd::start();
        let scratch = ScratchDir::new();
        import(&containerd, &scratch, "oci.tar", &TestImage::busybox("warren.local/b:1").oci_archive());
        let _ =
            containerd.container_stdout("default", "warren.local/b:1", "failed", &["cat", "/no-such-file"]);
    }

    #[test]
    fn containers_survive_a_restart_and_end_with_the_guard() {
        let mut containerd = TestContainerd::start();
        let scratch = ScratchDir::new();
        import(&containerd, &scratch, "oci.tar", &TestImage::busybox("warren.local/b:1").oci_archive());
        containerd.ctr([
            "run",
            "--detach",
            "--null-io",
            "warren.local/b:1",
            "survivor",
            "tail",
            "-f",
            "/dev/null",
        ]);
        let pid = |containerd: &TestContainerd| {
            let tasks = containerd.ctr(["tasks", "list"]);
            let line = tasks.lines().find(|line| line.starts_with("survivor ")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<i32>().unwrap()
        };
        let before = pid(&containerd);
        for _ in 0..2 {
            containerd.restart();
            assert_eq!(pid(&containerd), before);
        }
        let directory = containerd.directory().to_owned();
        let found = cleanup::processes(&directory);
        assert_eq!(cleanup::runc_states(&directory).len(), 1);
        assert!(found.iter().any(|process| process.pid == before), "{found:?}");
        assert!(!cleanup::mounts(&directory).is_empty());
        drop(containerd);
        assert_eq!(cleanup::processes(&directory), []);
        assert_eq!(cleanup::runc_states(&directory), Vec::<PathBuf>::new());
        assert!(cleanup::mounts(&directory).is_empty() && !directory.exists());
    }
}
