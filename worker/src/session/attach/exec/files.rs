//! Copies files from and to a container, as tar archives.

use std::io::{BufReader, BufWriter};
use std::path::Path;

use tokio::io::duplex;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use warren_archive::{BlockingReader, BlockingWriter, Destination, Error, FileTree, RootDir, extract};
use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::{ExecFailureReason as Reason, FilesDestination};

use super::{ExecEnd, ProgramInput, failure, send_acknowledgements, send_output};
use crate::session::attach::{AttachedStream, StreamError};

/// Bytes between the stream and the thread that reads or writes files.
const PIPE: usize = 256 << 10;
/// Exit code if some files were left out.
const LEFT_OUT: u32 = 1;
/// Files that are named as left out; the others are counted.
const MAX_NAMED: usize = 100;

pub(super) async fn find(root: RootDir, request: v1::ReadFiles) -> Result<FileTree, v1::ExecFailure> {
    let v1::ReadFiles { path, follow } = request;
    let found = spawn_blocking(move || FileTree::open(&root, Path::new(&path), follow)).await;
    found.expect("reading files does not panic").map_err(|error| refusal(&error))
}

/// Sends the archive of a tree.
pub(super) async fn read(tree: FileTree, attachment: &mut AttachedStream) -> Result<ExecEnd, StreamError> {
    let AttachedStream { inbound, out } = attachment;
    let (near, far) = duplex(PIPE);
    let far = BufWriter::with_capacity(PIPE, BlockingWriter::new(far));
    let writing: JoinHandle<Result<LeftOut, Error>> = spawn_blocking(move || {
        let mut left_out = LeftOut::default();
        let written = tree.write_to(far, &mut |file| left_out.add(file))?;
        written.into_inner().map_err(|error| Error::Archive(error.into_error()))?;
        Ok(left_out)
    });
    let (_sender, has_ended) = watch::channel(false);
    let input = ProgramInput::new(None, None, watch::Sender::new(0));
    let written = async {
        send_output(Box::new(near), out, Frame::Data, has_ended).await?;
        Ok(writing.await.expect("reading files does not panic"))
    };
    let written = tokio::select! {
        written = written => written?,
        reason = input.receive(inbound) => return reason.map(ExecEnd::Failed),
    };
    match written {
        Err(error) => Ok(ExecEnd::Refused(refusal(&error))),
        Ok(left_out) if left_out.count == 0 => Ok(ExecEnd::Exited(0)),
        Ok(left_out) => {
            out.send_without_deadline(Frame::StderrData(left_out.text().into())).await?;
            Ok(ExecEnd::Exited(LEFT_OUT))
        }
    }
}

/// Extracts the archive that the client sends. A part of a file is removed when it stops before its end.
pub(super) async fn write(
    root: RootDir,
    request: v1::WriteFiles,
    attachment: &mut AttachedStream,
) -> Result<ExecEnd, StreamError> {
    let destination = match request.destination() {
        FilesDestination::Named => Destination::Named,
        FilesDestination::Content => Destination::Content,
        FilesDestination::Into => Destination::Into,
        FilesDestination::Unspecified => {
            return Ok(ExecEnd::Refused(failure(Reason::Invalid, "destination", "is missing")));
        }
    };
    let AttachedStream { inbound, out } = attachment;
    let (near, far) = duplex(PIPE);
    let far = BufReader::with_capacity(PIPE, BlockingReader::new(far));
    let extracting = spawn_blocking(move || extract(&root, Path::new(&request.path), destination, far));
    let (consumed, acknowledged) = watch::channel(0);
    let input = ProgramInput::new(None, Some(Box::new(near)), consumed);
    let extracted = tokio::select! {
        extracted = extracting => extracted.expect("writing files does not panic"),
        reason = input.receive(inbound) => return reason.map(ExecEnd::Failed),
        lost = send_acknowledgements(acknowledged, out) => return Err(lost),
    };
    Ok(extracted.map_or_else(|error| ExecEnd::Refused(refusal(&error)), |()| ExecEnd::Exited(0)))
}

fn refusal(error: &Error) -> v1::ExecFailure {
    let reason = match error {
        Error::NotFound { .. } => Reason::FileNotFound,
        Error::Refused { .. } => Reason::FilesRefused,
        Error::Io { .. } | Error::Archive(_) => Reason::CopyFailed,
    };
    failure(reason, "path", error)
}

/// Files that are not copied.
#[derive(Debug, Default)]
struct LeftOut {
    named: Vec<String>,
    count: usize,
}

impl LeftOut {
    fn add(&mut self, file: String) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(file);
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for file in &self.named {
            text += &format!("not copied: {file}\n");
        }
        match self.count - self.named.len() {
            0 => text,
            more => text + &format!("not copied: {more} other files\n"),
        }
    }
}
