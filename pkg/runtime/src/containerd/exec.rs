//! Runs further programs in containers: those with a terminal through containerd and its supervisor, others with
//! `warren-exec` (`exec/program.rs`).
//!
//! With a terminal, input and output are named pipes in a directory per program. It exists from before the program is
//! known to containerd until containerd has forgotten it, so a sweep finds what a killed agent left by these
//! directories. The supervisor holds both ends of each pipe: a program does not end because this process does.

mod program;
mod sealed_program;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use containerd_client::services::v1::{
    CloseIoRequest, DeleteProcessRequest, ExecProcessRequest, GetRequest, KillRequest, ResizePtyRequest,
    StartRequest, WaitRequest,
};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use oci_spec::runtime as oci;
use prost_types::Any;
use tokio::net::unix::pipe;
use tokio::time::{sleep, timeout};
use tonic::Status;
use warren_image::{CallError, with_deadline};
use warren_types::{IdRange, Signal};

use super::create::{check_ids, resolve_user};
use super::create_error::exec_error;
use super::process_watcher::open_pidfd;
use super::{DELETE_TIMEOUT, Inner, RECORD_TIMEOUT, START_TIMEOUT, record};
use crate::Result;
use crate::container::{ContainerId, ProcessState, SweepReport};
use crate::error::Error;
use crate::exec::{ContainerHandles, ExecHandle, ExecInput, ExecOutput, ExecProcess, ExecSpec, TerminalSize};
use crate::pidfd::Pidfd;
use crate::spec::cgroup_path;
use crate::spec::user::{RequestedUser, User};

pub(super) use sealed_program::SealedProgram;

const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// Between container and exec id in the name of a directory; neither contains it.
const SEPARATOR: char = '@';
/// Time between SIGHUP and SIGKILL for a program whose caller has gone.
const HANGUP_GRACE: Duration = Duration::from_secs(2);
/// Pause and number of the tries to reach a containerd that restarts.
const WAIT_RETRY: Duration = Duration::from_millis(500);
const WAIT_TRIES: u32 = 60;

/// Directories of the programs of this process.
pub(super) struct ExecDirs {
    /// Start of this process in nanoseconds: ids of killed processes are others.
    started_at: u128,
    held: Mutex<HeldDirs>,
}

#[derive(Default)]
struct HeldDirs {
    names: BTreeSet<String>,
    next_number: u64,
}

impl Default for ExecDirs {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { started_at: since.map_or(0, |since| since.as_nanos()), held: Mutex::default() }
    }
}

impl ExecDirs {
    fn lock(&self) -> MutexGuard<'_, HeldDirs> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new exec id, and the name of its directory, which no sweep touches from now on.
    fn acquire(&self, id: &ContainerId) -> (String, String) {
        let mut held = self.lock();
        held.next_number += 1;
        let exec_id = format!("exec-{:x}-{}", self.started_at, held.next_number);
        let name = format!("{id}{SEPARATOR}{exec_id}");
        held.names.insert(name.clone());
        (exec_id, name)
    }
}

/// A process as containerd knows it.
#[derive(Clone)]
pub(super) struct ExecRef {
    pub id: ContainerId,
    /// Empty: the first process of the container.
    pub exec_id: String,
}

/// A program with a terminal, from its directory to its removal.
struct TerminalExec {
    shared: Arc<Inner>,
    exec: ExecRef,
    /// Name of its directory.
    name: String,
    /// On the host; 0 before the start.
    pid: u32,
    /// `None` before the start and after an early end.
    pidfd: Option<Pidfd>,
    has_ended: AtomicBool,
}

impl Inner {
    pub(super) async fn exec(self: &Arc<Self>, id: &ContainerId, spec: &ExecSpec) -> Result<ExecProcess> {
        spec.validate()?;
        if spec.terminal.is_none() {
            return self.exec_program(id, spec).await;
        }
        let process = self.exec_document(id, spec).await?;
        let (shared, id, spec) = (Arc::clone(self), id.clone(), spec.clone());
        // From its own task, so that it completes even if the caller is cancelled; the result ends the program then.
        let starting = tokio::spawn(async move { shared.start_exec(id, &spec, &process).await });
        starting.await.unwrap_or_else(|error| {
            Err(Error::Failed { action: "run a program".to_owned(), reason: error.to_string() })
        })
    }

    pub(super) async fn open(&self, id: &ContainerId) -> Result<ContainerHandles> {
        let missing = |what| Error::NotFound { id: id.to_string(), what };
        let status = self.inspect(id).await?.ok_or_else(|| missing("record"))?;
        let ProcessState::Running { pid } = status.process else { return Err(missing("running process")) };
        let pidfd = open_pidfd(id, pid).ok_or_else(|| missing("running process"))?;
        let open = |part| fs::File::open(format!("/proc/{pid}/{part}"));
        let opened = open("root").and_then(|root| Ok((root, open("ns/net")?)));
        // Otherwise the pid may belong to another process.
        if !pidfd.is_alive() {
            return Err(missing("running process"));
        }
        let (root, network) = opened.map_err(|error| Error::Failed {
            action: format!("open container {id}"),
            reason: error.to_string(),
        })?;
        Ok(ContainerHandles { root: root.into(), network: network.into(), ids: status.ids })
    }

    /// The process document, from the container's.
    async fn exec_document(&self, id: &ContainerId, spec: &ExecSpec) -> Result<oci::Process> {
        let missing = |what| Error::NotFound { id: id.to_string(), what };
        let found = self.get_record(id).await?.ok_or_else(|| missing("record"))?;
        let first = record::first_process(&found).ok_or_else(|| missing("process"))?;
        let user = self.exec_user(id, spec, record::ids(&found)).await?;
        Ok(spec.document(&first, user.as_ref()))
    }

    /// The user that the spec asks for, in a container with these ids.
    async fn exec_user(
        &self,
        id: &ContainerId,
        spec: &ExecSpec,
        ids: Option<IdRange>,
    ) -> Result<Option<User>> {
        let Some(user) = &spec.user else { return Ok(None) };
        let asked = RequestedUser::named(user);
        let user = match asked.numeric() {
            Some(user) => user,
            None => {
                let missing = || Error::NotFound { id: id.to_string(), what: "file system" };
                let mounts = self.find_mounts(id).await?.ok_or_else(missing)?;
                resolve_user(asked, mounts).await?
            }
        };
        check_ids(&user, ids)?;
        Ok(Some(user))
    }

    async fn start_exec(
        self: Arc<Self>,
        id: ContainerId,
        spec: &ExecSpec,
        process: &oci::Process,
    ) -> Result<ExecProcess> {
        let _turn = self.locks.lock_shared(&id).await;
        let _permit =
            self.start_permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (exec_id, name) = self.exec_dirs.acquire(&id);
        let exec = ExecRef { id, exec_id };
        let (shared, pidfd) = (Arc::clone(&self), None);
        let mut started =
            TerminalExec { shared, exec, name, pid: 0, pidfd, has_ended: AtomicBool::new(true) };
        let pipes = started.open_pipes(spec).map_err(|error| Error::Failed {
            action: "create the pipes of a program".to_owned(),
            reason: error.to_string(),
        })?;
        let failed = |status: &Status| exec_failed(&started.exec.id, spec, status);
        let value = serde_json::to_vec(process).expect("the process has string keys only");
        let path = |file: &str, is_used: bool| match is_used {
            true => started.dir().join(file).display().to_string(),
            false => String::new(),
        };
        let message = ExecProcessRequest {
            container_id: started.exec.id.to_string(),
            stdin: path("stdin", spec.input),
            stdout: path("stdout", true),
            stderr: String::new(),
            terminal: true,
            spec: Some(Any { type_url: PROCESS_TYPE.to_owned(), value }),
            exec_id: started.exec.exec_id.clone(),
        };
        let request = self.connection.request(message);
        let known = with_deadline(RECORD_TIMEOUT, self.connection.tasks().exec(request)).await;
        known.map_err(|status| failed(&status))?;
        let message =
            StartRequest { container_id: started.exec.id.to_string(), exec_id: started.exec.exec_id.clone() };
        let request = self.connection.request(message);
        let reply = with_deadline(START_TIMEOUT, self.connection.tasks().start(request)).await;
        match reply {
            Ok(reply) => started.pid = reply.pid,
            Err(status) => {
                // After a timeout it may run.
                let is_known = CallError::from_status(&status) == CallError::Other;
                started.has_ended = AtomicBool::new(is_known);
                return Err(exec_failed(&started.exec.id, spec, &status));
            }
        }
        started.has_ended = AtomicBool::new(false);
        started.pidfd = open_pidfd(&started.exec.id, started.pid);
        let (input, stdout) = pipes;
        Ok(ExecProcess { input, stdout, stderr: None, handle: Box::new(started) })
    }

    /// Waits for the end of a process; returns its exit code.
    pub(super) async fn wait_exec(&self, exec: &ExecRef) -> Result<u32> {
        let message = WaitRequest { container_id: exec.id.to_string(), exec_id: exec.exec_id.clone() };
        let ended = while_unavailable(|| async {
            // It takes as long as the program.
            self.connection.tasks().wait(self.connection.request(message.clone())).await
        });
        match ended.await {
            Ok(reply) => Ok(reply.into_inner().exit_status),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => {
                Err(Error::NotFound { id: exec.id.to_string(), what: "process" })
            }
            Err(status) => {
                Err(Error::from_status(format!("wait for a program in container {}", exec.id), &status))
            }
        }
    }

    /// Ends the input of a process. Without that, a program that reads its input to the end waits for ever.
    pub(super) async fn close_input(&self, exec: &ExecRef) -> Result<()> {
        let ExecRef { id, exec_id } = exec.clone();
        let message = CloseIoRequest { container_id: id.to_string(), exec_id, stdin: true };
        let closed = while_unavailable(|| async {
            let request = self.connection.request(message.clone());
            with_deadline(RECORD_TIMEOUT, self.connection.tasks().close_io(request)).await
        });
        let failed = |status| Error::from_status(format!("end the input in container {id}"), &status);
        closed.await.map_err(failed)
    }

    pub(super) async fn resize(&self, exec: &ExecRef, size: TerminalSize) -> Result<()> {
        let ExecRef { id, exec_id } = exec.clone();
        let (width, height) = (size.columns.into(), size.rows.into());
        let message = ResizePtyRequest { container_id: id.to_string(), exec_id, width, height };
        let request = self.connection.request(message);
        let resized = with_deadline(RECORD_TIMEOUT, self.connection.tasks().resize_pty(request)).await;
        resized.map_err(|status| Error::from_status(format!("resize a terminal in container {id}"), &status))
    }

    async fn kill_exec(&self, exec: &ExecRef) {
        let message = KillRequest {
            container_id: exec.id.to_string(),
            exec_id: exec.exec_id.clone(),
            signal: Signal::KILL.number().unsigned_abs(),
            all: false,
        };
        let request = self.connection.request(message);
        let killed = with_deadline(RECORD_TIMEOUT, self.connection.tasks().kill(request)).await;
        tracing::debug!(id = %exec.id, exec_id = exec.exec_id, ?killed, "killed a program");
    }

    /// The live processes of a program's session: it, and those that it started and that have no other one.
    fn session_members(&self, id: &ContainerId, leader: u32) -> Vec<Pidfd> {
        let cgroup = cgroup_path(&self.settings.cgroup_parent, id);
        let all = self.cgroups.processes(&cgroup).into_iter();
        let members = all.filter_map(|pid| {
            let pidfd = open_pidfd(id, pid)?;
            (session(pid) == Some(leader) && pidfd.is_alive()).then_some(pidfd)
        });
        members.collect()
    }

    fn signal_session(&self, id: &ContainerId, leader: u32, signal: Signal) {
        for member in self.session_members(id, leader) {
            // One that has ended meanwhile is fine.
            let _ = member.send(signal);
        }
    }

    /// Kills a program if it runs, and has containerd forget it.
    async fn end_exec(&self, exec: &ExecRef, pid: u32, has_ended: bool) -> Result<()> {
        if !has_ended {
            if pid > 0 {
                self.signal_session(&exec.id, pid, Signal::KILL);
            }
            self.kill_exec(exec).await;
            // A missing one is found missing by the next call.
            let _ = timeout(DELETE_TIMEOUT, self.wait_exec(exec)).await;
        }
        let message =
            DeleteProcessRequest { container_id: exec.id.to_string(), exec_id: exec.exec_id.clone() };
        let request = self.connection.request(message);
        match with_deadline(DELETE_TIMEOUT, self.connection.tasks().delete_process(request)).await {
            Ok(_) => Ok(()),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(()),
            Err(status) => {
                Err(Error::from_status(format!("delete a program of container {}", exec.id), &status))
            }
        }
    }

    /// Ends the programs of a killed agent. Those of this process are known, so there is no delay.
    pub(super) async fn sweep_execs(&self, swept: &mut SweepReport) {
        // Also those that are listed below and end meanwhile.
        let held = self.exec_dirs.lock().names.clone();
        let entries = fs::read_dir(&self.settings.exec_dir).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        for name in names {
            if held.contains(&name) || self.exec_dirs.lock().names.contains(&name) {
                continue;
            }
            match self.remove_stale_exec(&name).await {
                Ok(()) => swept.execs.push(name),
                Err(error) => swept.failed.push(error.to_string()),
            }
        }
    }

    async fn remove_stale_exec(&self, name: &str) -> Result<()> {
        let known = name.split_once(SEPARATOR);
        let known = known.and_then(|(id, exec_id)| Some((ContainerId::parse(id).ok()?, exec_id)));
        if let Some((id, exec_id)) = known {
            let exec = ExecRef { id, exec_id: exec_id.to_owned() };
            let message = GetRequest { container_id: exec.id.to_string(), exec_id: exec_id.to_owned() };
            let request = self.connection.request(message);
            let found = with_deadline(RECORD_TIMEOUT, self.connection.tasks().get(request)).await;
            let pid = found.ok().and_then(|reply| reply.process).map_or(0, |process| process.pid);
            self.end_exec(&exec, pid, false).await?;
        }
        let removed = fs::remove_dir_all(self.settings.exec_dir.join(name));
        removed.map_err(|error| Error::Failed { action: format!("remove {name}"), reason: error.to_string() })
    }
}

impl TerminalExec {
    fn dir(&self) -> PathBuf {
        self.shared.settings.exec_dir.join(&self.name)
    }

    /// Creates and opens the pipes. The output is read only after the start: before that, no writer is like its end.
    fn open_pipes(&self, spec: &ExecSpec) -> io::Result<(Option<ExecInput>, ExecOutput)> {
        let dir = self.dir();
        fs::create_dir_all(&dir)?;
        let create = |file: &str| {
            let path = dir.join(file);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).map(|()| path)
        };
        let output = || -> io::Result<ExecOutput> {
            Ok(Box::new(pipe::OpenOptions::new().open_receiver(create("stdout")?)?))
        };
        let input = || -> io::Result<ExecInput> {
            // Also for reading: the supervisor opens its end later.
            Ok(Box::new(pipe::OpenOptions::new().read_write(true).open_sender(create("stdin")?)?))
        };
        Ok((spec.input.then(input).transpose()?, output()?))
    }
}

#[async_trait]
impl ExecHandle for TerminalExec {
    async fn wait(&self) -> Result<u32> {
        let ended = self.shared.wait_exec(&self.exec).await;
        if matches!(ended, Ok(_) | Err(Error::NotFound { .. })) {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        ended
    }

    async fn close_input(&self) -> Result<()> {
        self.shared.close_input(&self.exec).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.shared.resize(&self.exec, size).await
    }

    fn signal(&self, signal: Signal) {
        if let Some(pidfd) = &self.pidfd {
            let _ = pidfd.send(signal);
        }
    }
}

impl Drop for TerminalExec {
    fn drop(&mut self) {
        let has_ended = self.has_ended.load(Ordering::Relaxed);
        if !has_ended && self.pid > 0 {
            // Here, since it also works while this process ends.
            self.shared.signal_session(&self.exec.id, self.pid, Signal::HUP);
        }
        let (shared, exec, pid, name) =
            (Arc::clone(&self.shared), self.exec.clone(), self.pid, std::mem::take(&mut self.name));
        // Without a runtime, or if it ends first, the next sweep removes it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            shared.exec_dirs.lock().names.remove(&name);
            return;
        };
        runtime.spawn(async move {
            let mut has_ended = has_ended;
            if !has_ended && pid > 0 {
                let left = timeout(HANGUP_GRACE, shared.wait_exec(&exec)).await;
                shared.signal_session(&exec.id, pid, Signal::KILL);
                has_ended = left.is_ok_and(|ended| ended.is_ok());
            }
            let removed = shared.end_exec(&exec, pid, has_ended).await;
            let removed = removed.map_err(|error| error.to_string()).and_then(|()| {
                fs::remove_dir_all(shared.settings.exec_dir.join(&name)).map_err(|error| error.to_string())
            });
            if let Err(error) = removed {
                tracing::debug!(name, error, "a program is kept until the next sweep");
            }
            shared.exec_dirs.lock().names.remove(&name);
        });
    }
}

/// Repeats a call while containerd does not answer, as while it restarts.
async fn while_unavailable<T, F: Future<Output = std::result::Result<T, Status>>>(
    call: impl Fn() -> F,
) -> std::result::Result<T, Status> {
    for _ in 1..WAIT_TRIES {
        let answer = call().await;
        let failure = answer.as_ref().err().map(CallError::from_status);
        if !matches!(failure, Some(CallError::Unavailable | CallError::Timeout)) {
            return answer;
        }
        sleep(WAIT_RETRY).await;
    }
    call().await
}

/// The id of a process's session.
fn session(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may contain anything: state, parent, group, session.
    stat.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()
}

fn exec_failed(id: &ContainerId, spec: &ExecSpec, status: &Status) -> Error {
    let message = status.message();
    match CallError::from_status(status) {
        CallError::NotFound => Error::NotFound { id: id.to_string(), what: "process" },
        CallError::Other if is_stopped(message) => {
            Error::NotFound { id: id.to_string(), what: "running process" }
        }
        CallError::Other => {
            if let Some(reason) = exec_error(message) {
                let command = spec.command.first().cloned().unwrap_or_default();
                return Error::CommandNotFound { command, reason };
            }
            match &spec.directory {
                Some(directory) if is_about_directory(message) => {
                    let reason = format!("{directory:?} is not a directory that its user may enter");
                    Error::invalid_field("directory", reason)
                }
                _ => Error::from_status(format!("run a program in container {id}"), status),
            }
        }
        _ => Error::from_status(format!("run a program in container {id}"), status),
    }
}

/// Messages of the supervisor, runc and crun about a container without a running first process.
fn is_stopped(message: &str) -> bool {
    ["stopped state", "is not running", "in a created state", "cannot exec in a deleted state"]
        .iter()
        .any(|part| message.contains(part))
}

fn is_about_directory(message: &str) -> bool {
    message.contains("chdir") || message.contains("set working directory") || message.contains("cwd")
}
