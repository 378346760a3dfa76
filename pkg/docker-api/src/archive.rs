//! `/containers/ID/archive`: files of a container as a tar archive.

use std::path::Path;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use serde_json::json;
use tar::{Archive, EntryType};
use warren_client::{Client, INPUT_CHUNK, ProgramEvent, ProgramInput, ProgramOutput, RunningProgram};
use warren_proto::v1;
use warren_proto::v1::exec_target::Work;
use warren_types::Timestamp;
use warren_types::base64::encode_base64;

use crate::containers;
use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{self, Answer, BodyError, empty};

/// The longest chain of links, as of the kernel.
const MAX_LINKS: usize = 40;
const TAR: &str = "application/x-tar";
/// What the path is, as JSON in base64.
const STAT_HEADER: &str = "x-docker-container-path-stat";
/// Maximum size of the first header with long names, in bytes.
const MAX_HEADER: usize = 64 << 10;
/// Bits of the modes of Go.
const DIRECTORY: u32 = 1 << 31;
const LINK: u32 = 1 << 27;
const SET_UID: u32 = 1 << 23;
const SET_GID: u32 = 1 << 22;
const STICKY: u32 = 1 << 20;

/// `HEAD /containers/ID/archive`: what is at the path.
pub async fn stat(client: &Client, container: &str, request: &DockerRequest) -> Answer {
    let (stat, _) = begin(client, container, request).await?;
    let mut response = empty(StatusCode::OK)?;
    response.headers_mut().insert(STAT_HEADER, stat);
    Ok(response)
}

/// `GET /containers/ID/archive`.
pub async fn read(client: &Client, container: &str, request: &DockerRequest) -> Answer {
    let (stat, archive) = begin(client, container, request).await?;
    let parts = stream::unfold(Some(archive), |archive| async {
        let mut archive = archive?;
        if !archive.first.is_empty() {
            return Some((Ok(std::mem::take(&mut archive.first)), Some(archive)));
        }
        match next_part(&mut archive.output).await {
            Ok(Some(part)) => Some((Ok(part), Some(archive))),
            Ok(None) => None,
            Err(error) => Some((Err(BodyError::other(error.message)), None)),
        }
    });
    let mut response = response::stream(TAR, parts);
    response.headers_mut().insert(STAT_HEADER, stat);
    Ok(response)
}

/// `PUT /containers/ID/archive`: extracts an archive in a directory.
pub async fn write(client: &Client, container: &str, request: &DockerRequest) -> Answer {
    let path = path(request)?.to_owned();
    if request.has_content_encoding {
        return Err(DockerError::invalid("Content-Encoding: archives are sent without compression"));
    }
    let task = containers::find(client, container).await?;
    let body = request.take_stream().ok_or_else(|| DockerError::invalid("the request has no body"))?;
    let destination = v1::FilesDestination::Into.into();
    let work = Work::WriteFiles(v1::WriteFiles { path, destination });
    let RunningProgram { input, mut output, .. } = client.tasks().exec(target(task.id, work)).await?;
    let extracted = async {
        let mut problems = String::new();
        loop {
            match output.next().await? {
                ProgramEvent::Stderr(text) => problems.push_str(&String::from_utf8_lossy(&text)),
                ProgramEvent::Exited(0) => return Ok(()),
                ProgramEvent::Exited(_) => return Err(DockerError::invalid(problems.trim())),
                ProgramEvent::Stdout(_) | ProgramEvent::OutputEnded => {}
            }
        }
    };
    tokio::pin!(extracted);
    tokio::select! {
        extracted = &mut extracted => extracted?,
        fed = feed(body, input) => {
            fed?;
            extracted.await?;
        }
    }
    empty(StatusCode::OK)
}

fn path(request: &DockerRequest) -> Result<&str, DockerError> {
    request.text("path").ok_or_else(|| DockerError::invalid("path: it is missing"))
}

fn target(task: String, work: Work) -> v1::ExecTarget {
    v1::ExecTarget { task, work: Some(work), ..v1::ExecTarget::default() }
}

/// An archive of which the beginning was read.
struct BegunArchive {
    first: Bytes,
    output: ProgramOutput,
}

/// Begins to read the files at the path, and says what is there. Clients follow a link once: they get the end of a
/// chain of links.
async fn begin(
    client: &Client,
    container: &str,
    request: &DockerRequest,
) -> Result<(HeaderValue, BegunArchive), DockerError> {
    let path = path(request)?.to_owned();
    let task = containers::find(client, container).await?.id;
    let (mut stat, archive) = begin_at(client, &task, path.clone()).await?;
    let (mut at, mut next) = (path, stat.link_target.clone());
    for _ in 0..MAX_LINKS {
        let Some(target) = next else { break };
        at = Path::new(&at).parent().unwrap_or(Path::new("/")).join(target).to_string_lossy().into_owned();
        stat.link_target = Some(at.clone());
        next = match begin_at(client, &task, at.clone()).await {
            Ok((stat, _)) => stat.link_target,
            // A link to nothing.
            Err(error) if error.status == StatusCode::NOT_FOUND => None,
            Err(error) => return Err(error),
        };
    }
    let stat = stat.header().ok_or_else(|| DockerError::invalid("path: its name cannot be shown"))?;
    Ok((stat, archive))
}

async fn begin_at(
    client: &Client,
    task: &str,
    path: String,
) -> Result<(FileStat, BegunArchive), DockerError> {
    let work = Work::ReadFiles(v1::ReadFiles { path, follow: false });
    let RunningProgram { mut output, .. } = client.tasks().exec(target(task.to_owned(), work)).await?;
    let mut first = BytesMut::new();
    loop {
        let part = next_part(&mut output).await?;
        let is_complete = part.is_none();
        first.extend_from_slice(&part.unwrap_or_default());
        if let Some(stat) = FileStat::of(&first) {
            return Ok((stat, BegunArchive { first: first.freeze(), output }));
        }
        if is_complete || first.len() > MAX_HEADER {
            return Err(DockerError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the archive has no first entry",
            ));
        }
    }
}

/// The next part of an archive; `None` at its end.
async fn next_part(output: &mut ProgramOutput) -> Result<Option<Bytes>, DockerError> {
    let mut problems = String::new();
    loop {
        match output.next().await? {
            ProgramEvent::Stdout(bytes) => return Ok(Some(bytes)),
            // Names of files that cannot be copied, like devices.
            ProgramEvent::Stderr(text) => problems.push_str(&String::from_utf8_lossy(&text)),
            ProgramEvent::OutputEnded => {}
            ProgramEvent::Exited(_) if problems.is_empty() => return Ok(None),
            ProgramEvent::Exited(_) => {
                tracing::warn!(problems = problems.trim(), "files were not copied from a container");
                return Ok(None);
            }
        }
    }
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStat {
    name: String,
    size: u64,
    /// As of Go.
    mode: u32,
    modified: Timestamp,
    link_target: Option<String>,
}

impl FileStat {
    /// Of the first entry of an archive; `None` if more of it must be read.
    fn of(archive: &[u8]) -> Option<Self> {
        let mut archive = Archive::new(archive);
        let entry = archive.entries().ok()?.next()?.ok()?;
        let header = entry.header();
        let mode = header.mode().ok()?;
        let kind = match header.entry_type() {
            EntryType::Directory => DIRECTORY,
            EntryType::Symlink => LINK,
            _ => 0,
        };
        let special = [(0o4000, SET_UID), (0o2000, SET_GID), (0o1000, STICKY)];
        let special =
            special.into_iter().filter(|(bit, _)| mode & bit != 0).fold(0, |all, (_, bit)| all | bit);
        let is_link = header.entry_type() == EntryType::Symlink;
        let link = if is_link { entry.link_name().ok().flatten() } else { None };
        let name = entry.path().ok()?;
        Some(Self {
            name: name.file_name().map_or(name.as_os_str(), |last| last).to_string_lossy().into_owned(),
            size: entry.size(),
            mode: mode & 0o777 | kind | special,
            modified: Timestamp(header.mtime().ok()?.saturating_mul(1000)),
            link_target: link.map(|target| target.to_string_lossy().into_owned()),
        })
    }

    fn header(&self) -> Option<HeaderValue> {
        let stat = json!({
            "name": self.name, "size": self.size, "mode": self.mode, "mtime": self.modified.to_string(),
            "linkTarget": self.link_target.as_deref().unwrap_or_default(),
        });
        HeaderValue::from_str(&encode_base64(stat.to_string().as_bytes())).ok()
    }
}

/// Passes the body on as the input.
async fn feed(mut body: Incoming, mut input: ProgramInput) -> Result<(), DockerError> {
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| DockerError::invalid(format!("the body cannot be read: {error}")))?;
        let Ok(mut data) = frame.into_data() else { continue };
        while !data.is_empty() {
            let part = data.split_to(data.len().min(INPUT_CHUNK));
            if !input.send(part).await {
                // Its output says why.
                return std::future::pending().await;
            }
        }
    }
    input.end().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> FileStat {
        let mut archive = tar::Builder::new(Vec::new());
        build(&mut archive);
        let archive = archive.into_inner().unwrap();
        assert_eq!(FileStat::of(&archive[..300]), None);
        FileStat::of(&archive).unwrap()
    }

    fn header(kind: EntryType, mode: u32) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_700_000_000);
        header.set_size(0);
        header
    }

    #[test]
    fn first_entry_says_what_is_at_the_path() {
        let directory = stat(|archive| {
            let mut header = header(EntryType::Directory, 0o1755);
            archive.append_data(&mut header, "etc", &[][..]).unwrap();
            archive.append_data(&mut self::header(EntryType::Regular, 0o600), "etc/x", &[][..]).unwrap();
        });
        let expected = FileStat {
            name: "etc".into(),
            size: 0,
            mode: 0o755 | DIRECTORY | STICKY,
            modified: Timestamp(1_700_000_000_000),
            link_target: None,
        };
        assert_eq!(directory, expected);
        let link = stat(|archive| {
            let mut header = header(EntryType::Symlink, 0o777);
            archive.append_link(&mut header, "a".repeat(150), "/b").unwrap();
        });
        assert_eq!((link.link_target.as_deref(), link.mode), (Some("/b"), 0o777 | LINK));
        assert_eq!(link.name, "a".repeat(150));
    }
}
