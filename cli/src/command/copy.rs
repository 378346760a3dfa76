//! `warren task cp`: copies files between this machine and a container.

use std::io::{self, BufReader, BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::task::spawn_blocking;
use warren_archive::{BlockingReader, BlockingWriter, Destination, FileTree, RootDir, extract};
use warren_client::{Client, Error, INPUT_CHUNK, ProgramEvent, ProgramInput, RunningProgram};
use warren_daemon::printable;
use warren_proto::v1;
use warren_proto::v1::exec_target::Work;

use super::exec;
use crate::args::GlobalArgs;
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client_with_hint};
use crate::signals::{LocalSignals, killed};

/// Bytes between the connection and the thread that reads or writes files.
const PIPE: usize = 256 << 10;

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    /// A tar archive on standard input or output.
    Stream,
    Task {
        task: String,
        path: String,
    },
}

impl Place {
    fn parse(text: &str) -> Self {
        let (task, path) = match text.split_once(':') {
            _ if text == "-" => return Self::Stream,
            Some((task, path)) if !task.is_empty() && !task.contains('/') && !task.starts_with('.') => {
                (task, path)
            }
            _ => return Self::Local(text.into()),
        };
        let path = if path.is_empty() { "/" } else { path };
        Self::Task { task: task.to_owned(), path: path.to_owned() }
    }
}

/// Copies; the exit code says whether something was left out.
pub async fn run(
    global: &GlobalArgs,
    source: &str,
    destination: &str,
    follow: bool,
) -> Result<ExitCode, CommandError> {
    let what = format!("{source} was not copied to {destination}");
    let usage =
        |why: &str, hint: &str| CommandError::new(ExitKind::Usage, what.clone(), why.to_owned(), hint);
    match (Place::parse(source), Place::parse(destination)) {
        (Place::Task { .. }, Place::Task { .. }) => Err(usage(
            "both are in containers",
            "copy to this machine first, or pipe one `task cp TASK:PATH -` to another",
        )),
        (Place::Task { task, path }, to) => {
            if to == Place::Stream && io::stdout().is_terminal() {
                return Err(usage("the archive would be printed on a terminal", "redirect the output"));
            }
            let work = Work::ReadFiles(v1::ReadFiles { path: path.clone(), follow });
            let client = connect(global, &what).await?;
            match to {
                Place::Local(to) => download(&client, target(task, work), &what, Path::new(&path), &to).await,
                _ => {
                    let RunningProgram { output, .. } = start(&client, target(task, work), &what).await?;
                    exec::printed(exec::print(output).await)
                }
            }
        }
        (Place::Local(from), Place::Task { task, path }) => {
            let (from, failed) = (absolute(&from, &what)?, |error| archive_failure(&what, error));
            let root = local_root(&what)?;
            let tree = spawn_blocking(move || FileTree::open(&root, &from, follow).map(|tree| (tree, from)));
            let (tree, from) = tree.await.expect("reading files does not panic").map_err(failed)?;
            let destination = match Destination::of(&from) {
                Destination::Content => v1::FilesDestination::Content,
                _ => v1::FilesDestination::Named,
            };
            let work = Work::WriteFiles(v1::WriteFiles { path, destination: destination.into() });
            let client = connect(global, &what).await?;
            upload(&client, target(task, work), &what, tree).await
        }
        (Place::Stream, Place::Task { task, path }) => {
            let destination = v1::FilesDestination::Into.into();
            let work = Work::WriteFiles(v1::WriteFiles { path, destination });
            let client = connect(global, &what).await?;
            let RunningProgram { input, output, .. } = start(&client, target(task, work), &what).await?;
            let fed = async {
                match exec::feed(input).await {
                    Ok(()) => std::future::pending().await,
                    Err(error) => error,
                }
            };
            tokio::select! {
                ended = exec::print(output) => exec::printed(ended),
                error = fed => Err(CommandError::new(ExitKind::Failed, what, error, "")),
            }
        }
        _ => Err(usage("neither is in a container", "write TASK:PATH, for example web.1:/etc/hosts")),
    }
}

fn target(task: String, work: Work) -> v1::ExecTarget {
    v1::ExecTarget { task, work: Some(work), ..v1::ExecTarget::default() }
}

async fn start(client: &Client, target: v1::ExecTarget, what: &str) -> Result<RunningProgram, CommandError> {
    client.tasks().exec(target).await.map_err(|error| remote_failure(what, error))
}

fn remote_failure(what: &str, error: Error) -> CommandError {
    let hint = "wait until it runs, or choose another one: `warren task ls`".to_owned();
    from_client_with_hint(what, error, "TASK_NOT_RUNNING", hint)
}

fn archive_failure(what: &str, error: warren_archive::Error) -> CommandError {
    use warren_archive::Error;
    let kind = match &error {
        Error::NotFound { .. } => ExitKind::NotFound,
        Error::Refused { .. } => ExitKind::Conflict,
        Error::Io { .. } | Error::Archive(_) => ExitKind::Failed,
    };
    CommandError::new(kind, what, error, "")
}

fn local_root(what: &str) -> Result<RootDir, CommandError> {
    RootDir::open(Path::new("/")).map_err(|error| CommandError::new(ExitKind::Failed, what, error, ""))
}

/// Keeps the end of the path, which has a meaning.
fn absolute(path: &Path, what: &str) -> Result<PathBuf, CommandError> {
    let here = std::env::current_dir();
    here.map(|here| here.join(path)).map_err(|error| CommandError::new(ExitKind::Failed, what, error, ""))
}

async fn download(
    client: &Client,
    target: v1::ExecTarget,
    what: &str,
    source: &Path,
    destination: &Path,
) -> Result<ExitCode, CommandError> {
    let (root, path) = (local_root(what)?, absolute(destination, what)?);
    let mut signals =
        LocalSignals::new().map_err(|error| CommandError::new(ExitKind::Failed, what, error, ""))?;
    let RunningProgram { mut output, .. } = start(client, target, what).await?;
    let (mut near, far) = duplex(PIPE);
    let (far, kind) = (BufReader::with_capacity(PIPE, BlockingReader::new(far)), Destination::of(source));
    let extracting = spawn_blocking(move || extract(&root, &path, kind, far));
    let received = async {
        loop {
            match output.next().await? {
                ProgramEvent::Stdout(bytes) => {
                    if near.write_all(&bytes).await.is_err() {
                        // Its error says why.
                        return Ok(ExitCode::FAILURE);
                    }
                }
                ProgramEvent::Stderr(text) => eprint!("{}", printable(&String::from_utf8_lossy(&text))),
                ProgramEvent::OutputEnded => {}
                ProgramEvent::Exited(code) => {
                    return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
                }
            }
        }
    };
    let received = tokio::select! {
        received = received => received,
        number = signals.ending.next() => Ok(ExitCode::from(killed(number))),
    };
    // Without it the extraction ends, and removes the part of a file.
    drop(near);
    let extracted = extracting.await.expect("writing files does not panic");
    let code = received.map_err(|error| remote_failure(what, error))?;
    extracted.map_err(|error| archive_failure(what, error)).map(|()| code)
}

async fn upload(
    client: &Client,
    target: v1::ExecTarget,
    what: &str,
    tree: FileTree,
) -> Result<ExitCode, CommandError> {
    let RunningProgram { input, mut output, .. } = start(client, target, what).await?;
    let mut left_out = false;
    let feed = async {
        left_out = send_tree(tree, input).await?;
        Ok::<_, warren_archive::Error>(())
    };
    let ended = async {
        loop {
            if let ProgramEvent::Exited(code) = output.next().await? {
                return Ok(code);
            }
        }
    };
    tokio::pin!(ended);
    let code = tokio::select! {
        code = &mut ended => code,
        fed = feed => {
            fed.map_err(|error| archive_failure(what, error))?;
            ended.await
        }
    };
    let code = code.map_err(|error| remote_failure(what, error))?;
    Ok(if left_out { ExitCode::FAILURE } else { ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)) })
}

/// Returns whether something was left out.
async fn send_tree(tree: FileTree, mut input: ProgramInput) -> Result<bool, warren_archive::Error> {
    use warren_archive::Error;
    let (mut near, far) = duplex(PIPE);
    let far = BufWriter::with_capacity(PIPE, BlockingWriter::new(far));
    let writing = spawn_blocking(move || {
        let mut left_out = false;
        let written = tree.write_to(far, &mut |file| {
            eprintln!("not copied: {file}");
            left_out = true;
        })?;
        written.into_inner().map_err(|error| Error::Archive(error.into_error()))?;
        Ok::<_, Error>(left_out)
    });
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(INPUT_CHUNK);
        if (&mut near).take(INPUT_CHUNK as u64).read_buf(&mut buffer).await.map_err(Error::Archive)? == 0 {
            break;
        }
        if !input.send(buffer.split().freeze()).await {
            // The other end says why.
            return std::future::pending().await;
        }
    }
    let left_out = writing.await.expect("reading files does not panic")?;
    input.end().await;
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_in_a_task_or_here() {
        let task = |task: &str, path: &str| Place::Task { task: task.into(), path: path.into() };
        for (text, place) in [
            ("web.1:/etc/hosts", task("web.1", "/etc/hosts")),
            ("web.1:etc/a:b", task("web.1", "etc/a:b")),
            ("web.1:", task("web.1", "/")),
            ("-", Place::Stream),
            ("./web.1:/etc", Place::Local("./web.1:/etc".into())),
            ("/tmp/a:b", Place::Local("/tmp/a:b".into())),
            ("dir/a:b", Place::Local("dir/a:b".into())),
            ("file", Place::Local("file".into())),
        ] {
            assert_eq!(Place::parse(text), place, "{text}");
        }
    }
}
