//! Audit lines of all managers.

use tonic::Streaming;
use warren_proto::v1;
use warren_proto::v1::audit_response::Message;
use warren_proto::v1::cluster_client::ClusterClient;

use crate::channel::ManagerChannel;
use crate::client::{Client, error_from_status};
use crate::error::Error;

/// A line, or why lines are missing.
#[derive(Debug, Clone, PartialEq)]
pub enum AuditMessage {
    /// A call.
    Line(Box<v1::AuditLine>),
    /// The manager whose lines are missing, and why.
    Warning(v1::AuditWarning),
}

/// Lines in order of time. It ends with an error when the manager is lost.
#[derive(Debug)]
pub struct AuditLineStream {
    link: ManagerChannel,
    stream: Streaming<v1::AuditResponse>,
}

impl AuditLineStream {
    pub(crate) async fn open(client: &Client, request: v1::AuditRequest) -> Result<Self, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).audit(request).await };
        let (link, stream) = client.start_stream(request, call).await?;
        Ok(Self { link, stream })
    }

    /// The next message; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<AuditMessage>, Error> {
        loop {
            let answer =
                self.stream.message().await.map_err(|status| error_from_status(&self.link, &status))?;
            let Some(answer) = answer else { return Ok(None) };
            match answer.message {
                Some(Message::Line(line)) => return Ok(Some(AuditMessage::Line(Box::new(line)))),
                Some(Message::Warning(warning)) => return Ok(Some(AuditMessage::Warning(warning))),
                // Between managers, or a later version's.
                Some(Message::CaughtUp(_)) | None => {}
            }
        }
    }
}
