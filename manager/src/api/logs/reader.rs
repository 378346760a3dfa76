//! Reads one task's lines from its node.

use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt;
use warren_proto::v1;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::NodeStatus;

use super::super::Api;
use super::{Said, Sink, Source, Wish};

/// How long a node may take to dial in; the others go on without it then.
const ATTACH: Duration = Duration::from_secs(5);
/// How long a node may say nothing of what is already written. While it follows, silence is usual.
const WORD: Duration = Duration::from_secs(30);

/// How reading came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The node has said everything.
    Complete,
    /// The node cannot say it.
    Refused(String),
    /// The node cannot be reached, or cannot any more.
    Lost(String),
    /// Nobody listens.
    Unwanted,
}

impl Api {
    /// Reads until the end; `last_ns` becomes the time of the last line that was given on.
    pub(super) async fn read_task(
        &self,
        source: &Source,
        wish: Wish,
        sink: &Sink,
        last_ns: &mut Option<u64>,
    ) -> End {
        let node = self.store.read().state.node(&source.node).cloned();
        if node.is_none_or(|node| node.status == NodeStatus::Down) {
            return End::Lost(format!("node {} is down", source.node_name));
        }
        let Wish { follow, tail, since_ns } = wish;
        let task_id = source.task.to_string();
        let purpose = Purpose::ReadLogs(v1::ReadTaskLogs { task_id, follow, tail, since_ns });
        let mut stream = match self.open(source.node, purpose, ATTACH).await {
            Ok(stream) => stream,
            Err(why) => return End::Lost(why),
        };
        loop {
            let word = match follow {
                true => stream.inbound.next().await,
                false => match timeout(WORD, stream.inbound.next()).await {
                    Ok(word) => word,
                    Err(_) => return End::Lost("the node said nothing for too long".to_owned()),
                },
            };
            let said = match word.transpose().map(|word| word.and_then(|frame| frame.frame)) {
                Ok(Some(Frame::Lines(lines))) => {
                    *last_ns = lines.lines.last().map(|line| line.at_ns).or(*last_ns);
                    Said::Lines(lines.lines)
                }
                Ok(Some(Frame::Missed(words))) => Said::Trouble(words),
                Ok(Some(Frame::Done(_))) => return End::Complete,
                Ok(Some(Frame::Failed(why))) => return End::Refused(why),
                Ok(_) => return End::Lost("the node broke off".to_owned()),
                Err(status) => return End::Lost(format!("the node broke off: {}", status.message())),
            };
            if sink.send((source.clone(), said)).await.is_err() {
                return End::Unwanted;
            }
        }
    }
}
