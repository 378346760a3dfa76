//! Reads the log lines of one task from its node.

use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::NodeStatus;

use super::super::Api;
use super::{BatchSender, LogQuery, LogSelector, LogSource, SourceBatch};

/// How long a node may take to open the stream; the others continue without it then.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node may send nothing while it reads existing lines. When it follows, silence is normal.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How a read ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogReadEnd {
    /// The node has sent all lines.
    Complete,
    /// The node has no log of the task.
    NoOutput(String),
    /// The node cannot read the log.
    Refused(String),
    /// The node is unreachable, or the connection broke.
    Lost(String),
    /// The client disconnected.
    Cancelled,
}

impl LogReadEnd {
    /// Why lines are missing, if that is worth telling.
    pub fn failure(self, source: &LogSource, selector: LogSelector) -> Option<String> {
        match self {
            Self::Complete | Self::Cancelled => None,
            Self::NoOutput(_)
                if (source.is_retained || !source.has_run) && !selector.reports_missing_logs() =>
            {
                None
            }
            Self::NoOutput(why) | Self::Refused(why) | Self::Lost(why) => Some(why),
        }
    }
}

impl Api {
    /// Reads until the end; `last_ns` is set to the time of the last line that was passed on.
    pub(super) async fn read_task(
        &self,
        source: &LogSource,
        query: LogQuery,
        sink: &BatchSender,
        last_ns: &mut Option<u64>,
    ) -> LogReadEnd {
        match self.store.read().state.node(&source.node).map(|node| node.status) {
            None => {
                let why = "the node of the task was removed from the cluster, and its logs with it";
                return LogReadEnd::Refused(why.to_owned());
            }
            Some(NodeStatus::Down) => {
                let why = format!("node {} is down: its logs can be read when it is back", source.node_name);
                return LogReadEnd::Lost(why);
            }
            Some(NodeStatus::Ready | NodeStatus::Unknown) => {}
        }
        let LogQuery { follow, tail, since_ns } = query;
        let task_id = source.task.to_string();
        let purpose = Purpose::ReadLogs(v1::ReadTaskLogs { task_id, follow, tail, since_ns });
        let mut stream = match self.open_stream(source.node, purpose, ATTACH_TIMEOUT).await {
            Ok(stream) => stream,
            Err(why) => return LogReadEnd::Lost(why),
        };
        loop {
            let message = match follow {
                true => stream.inbound.next().await,
                false => match timeout(READ_TIMEOUT, stream.inbound.next()).await {
                    Ok(message) => message,
                    Err(_) => return LogReadEnd::Lost("timeout: no response from node".to_owned()),
                },
            };
            let batch = match message.transpose().map(|message| message.and_then(|frame| frame.frame)) {
                Ok(Some(Frame::Lines(lines))) => {
                    *last_ns = lines.lines.last().map(|line| line.at_ns).or(*last_ns);
                    SourceBatch::Lines(lines.lines)
                }
                Ok(Some(Frame::DroppedLines(words))) => SourceBatch::Failure(words),
                Ok(Some(Frame::Done(_))) => return LogReadEnd::Complete,
                Ok(Some(Frame::NoOutput(why))) => return LogReadEnd::NoOutput(why),
                Ok(Some(Frame::Error(why))) => return LogReadEnd::Refused(why),
                Ok(_) => return LogReadEnd::Lost("the stream from the node ended".to_owned()),
                Err(status) => {
                    return LogReadEnd::Lost(format!(
                        "the stream from the node failed: {}",
                        status.message()
                    ));
                }
            };
            if sink.send((source.clone(), batch)).await.is_err() {
                return LogReadEnd::Cancelled;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, NodeId, ServiceId, TaskId};

    #[test]
    fn missing_output_is_told_only_where_some_was_expected() {
        let (service, number) = (ServiceId(Id(1)), 1);
        let source = |is_retained, has_run| LogSource {
            task: TaskId { service, number },
            service: "web".parse().unwrap(),
            slot: 1,
            node: NodeId(Id(1)),
            node_name: "n1".into(),
            is_retained,
            has_run,
        };
        let of_service = LogSelector::Service { id: service, slot: None, previous: false };
        let is_told = |selector, is_retained, has_run| {
            LogReadEnd::NoOutput("none".into()).failure(&source(is_retained, has_run), selector).is_some()
        };
        assert!(is_told(of_service, false, true));
        assert!(!is_told(of_service, false, false), "it was not started yet");
        assert!(!is_told(of_service, true, true), "it was removed from its node");
        assert!(is_told(LogSelector::Task(TaskId { service, number }), true, false), "it was asked for");
    }
}
