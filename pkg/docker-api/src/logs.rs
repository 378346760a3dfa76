//! `/services/ID/logs` and `/tasks/ID/logs`: lines as frames of Docker's multiplexed stream.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::Stream;
use futures::stream;
use warren_client::{Client, LogOptions, LogStream, LogTarget};
use warren_proto::v1;
use warren_types::Timestamp;

use crate::docker_error::DockerError;
use crate::events::point_in_time;
use crate::frames::{MULTIPLEXED, RAW, StreamType, frame};
use crate::request::DockerRequest;
use crate::response::{self, Answer, BodyError};
use crate::task_ids::docker_id;
use crate::tasks;

/// What a client wants to see of each line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFormat {
    stdout: bool,
    stderr: bool,
    timestamps: bool,
    /// Before the line, which service, node and task it is of.
    details: bool,
    is_raw: bool,
}

impl LogFormat {
    /// What a request asks for.
    pub fn of(request: &DockerRequest, is_raw: bool) -> Result<Self, DockerError> {
        let format = Self {
            stdout: request.flag("stdout"),
            stderr: request.flag("stderr"),
            timestamps: request.flag("timestamps"),
            details: request.flag("details"),
            is_raw,
        };
        if !format.stdout && !format.stderr {
            return Err(DockerError::invalid("Bad parameters: you must choose at least one stream"));
        }
        Ok(format)
    }

    /// Of responses with this format.
    pub fn content_type(self) -> &'static str {
        if self.is_raw { RAW } else { MULTIPLEXED }
    }
}

/// `GET /services/ID/logs`.
pub async fn of_service(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let service = client.services().get(reference).await?;
    let task = service.spec.and_then(|spec| spec.task);
    let is_raw = task.is_some_and(|task| task.tty);
    read(client, LogTarget::Service(service.id), is_raw, request).await
}

/// `GET /tasks/ID/logs`.
pub async fn of_task(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let task = tasks::find(client, reference).await?;
    read_task(client, task, request).await
}

/// Those of a task that was found.
pub async fn read_task(client: &Client, task: v1::Task, request: &DockerRequest) -> Answer {
    let is_raw = task.spec.is_some_and(|spec| spec.tty);
    read(client, LogTarget::Task(task.id), is_raw, request).await
}

async fn read(client: &Client, target: LogTarget, is_raw: bool, request: &DockerRequest) -> Answer {
    let format = LogFormat::of(request, is_raw)?;
    let tail = match request.text("tail") {
        None | Some("all") => None,
        // As in Docker, what is no number is all.
        Some(text) => text.parse().ok(),
    };
    // 0 is a time that was not set.
    let since = request.text("since").map(|text| point_in_time("since", text)).transpose()?;
    let since = since.filter(|since| *since != 0).map(Timestamp);
    let options = LogOptions { follow: request.flag("follow"), tail, since, previous: false };
    Ok(response::stream(format.content_type(), frames(client.clone(), target, format, options).await?))
}

/// The lines of a task or of a service as frames.
pub async fn frames(
    client: Client,
    target: LogTarget,
    format: LogFormat,
    options: LogOptions,
) -> Result<impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static, warren_client::Error> {
    let lines = client.logs().read(target, options).await?;
    let source = DockerLog { lines, format, client, nodes: BTreeMap::new() };
    Ok(stream::unfold(Some(source), |source| async {
        let mut source = source?;
        match source.next().await {
            Ok(Some(frame)) => Some((Ok(frame), Some(source))),
            Ok(None) => None,
            Err(error) => Some((Err(BodyError::other(error)), None)),
        }
    }))
}

struct DockerLog {
    lines: LogStream,
    format: LogFormat,
    client: Client,
    /// Ids by name.
    nodes: BTreeMap<String, String>,
}

impl DockerLog {
    /// The next frame; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, warren_client::Error> {
        loop {
            let Some(entry) = self.lines.next().await? else { return Ok(None) };
            if self.format.details && !self.nodes.contains_key(&entry.node_name) {
                let nodes = self.client.nodes().list().await?;
                self.nodes = nodes.into_iter().map(|node| (node.name, node.id)).collect();
                // A removed node is known by its name only.
                self.nodes.entry(entry.node_name.clone()).or_insert_with(|| entry.node_name.clone());
            }
            let node_id = self.nodes.get(&entry.node_name).map_or("", String::as_str);
            if let Some(frame) = entry_frame(&entry, node_id, self.format) {
                return Ok(Some(frame));
            }
        }
    }
}

/// A line as a frame; `None` if the client does not want its stream.
fn entry_frame(entry: &v1::LogEntry, node_id: &str, format: LogFormat) -> Option<Bytes> {
    let (stream, at_ns, text, end) = match entry.entry.as_ref()? {
        v1::log_entry::Entry::Line(line) => {
            let is_error = line.stream() == v1::LogStream::Err;
            let stream = if is_error { StreamType::Stderr } else { StreamType::Stdout };
            let end: &[u8] = if line.partial { b"" } else { b"\n" };
            (stream, line.at_ns, line.text.clone(), end)
        }
        v1::log_entry::Entry::GapReason(reason) => {
            (StreamType::Stderr, 0, Bytes::from(format!("(lines are missing: {reason})")), &b"\n"[..])
        }
    };
    let is_accepted = if stream == StreamType::Stderr { format.stderr } else { format.stdout };
    if !is_accepted {
        return None;
    }
    let mut line = Vec::with_capacity(text.len() + 256);
    if format.timestamps {
        let seconds = Timestamp(at_ns / 1_000_000).to_string();
        let text = format!("{}.{:09}Z ", seconds.trim_end_matches('Z'), at_ns % 1_000_000_000);
        line.extend_from_slice(text.as_bytes());
    }
    if format.details {
        let service = entry.task_id.split_once('-').map_or("", |(service, _)| service);
        let task = docker_id(&entry.task_id);
        let prefix = "com.docker.swarm";
        let text =
            format!("{prefix}.node.id={node_id},{prefix}.service.id={service},{prefix}.task.id={task} ");
        line.extend_from_slice(text.as_bytes());
    }
    line.extend_from_slice(&text);
    line.extend_from_slice(end);
    Some(frame(stream, &line, format.is_raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: LogFormat =
        LogFormat { stdout: true, stderr: true, timestamps: false, details: false, is_raw: false };

    fn entry(stream: v1::LogStream, partial: bool) -> v1::LogEntry {
        let line = v1::LogLine {
            at_ns: 1_700_000_000_000_000_042,
            stream: stream.into(),
            text: Bytes::from_static(b"hello"),
            partial,
        };
        v1::LogEntry {
            task_id: "0000000000000000000000007-1".into(),
            service_name: "web".into(),
            slot: 1,
            node_name: "n1".into(),
            entry: Some(v1::log_entry::Entry::Line(line)),
        }
    }

    #[test]
    fn lines_are_frames() {
        let frame = |stream, partial, format| entry_frame(&entry(stream, partial), "node", format);
        let (out, err) = (v1::LogStream::Out, v1::LogStream::Err);
        assert_eq!(frame(out, false, PLAIN).unwrap()[..], *b"\x01\0\0\0\0\0\0\x06hello\n");
        assert_eq!(frame(err, true, PLAIN).unwrap()[..], *b"\x02\0\0\0\0\0\0\x05hello");
        assert_eq!(frame(err, false, LogFormat { stderr: false, ..PLAIN }), None);
        assert_eq!(frame(out, false, LogFormat { is_raw: true, ..PLAIN }).unwrap()[..], *b"hello\n");
        let all =
            frame(out, false, LogFormat { timestamps: true, details: true, is_raw: true, ..PLAIN }).unwrap();
        let expected = "2023-11-14T22:13:20.000000042Z com.docker.swarm.node.id=node,com.docker.swarm.service.id=\
                        0000000000000000000000007,com.docker.swarm.task.id=0000010000000000000000000000007 hello\n";
        assert_eq!(std::str::from_utf8(&all).unwrap(), expected);
    }
}
