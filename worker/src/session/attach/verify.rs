//! Runs the checks of the node for a manager.

use tokio::sync::mpsc;
use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;

use super::{StreamError, StreamSender};
use crate::verification::{NodeVerifier, VerificationRequest};

/// Sends the result of each check as soon as it is known.
pub(super) async fn verify(
    verifier: &NodeVerifier,
    request: v1::VerifyNode,
    out: &StreamSender,
) -> Result<Result<(), String>, StreamError> {
    let request = match VerificationRequest::try_from(request) {
        Ok(request) => request,
        Err(wrong) => return Ok(Err(format!("invalid checks for this version of the node: {wrong}"))),
    };
    let (results, mut received) = mpsc::channel(1);
    let run = async {
        verifier.run(request, &results).await;
        drop(results);
    };
    let send = async {
        while let Some(result) = received.recv().await {
            out.send(Frame::CheckResult((&result).into())).await?;
        }
        Ok(())
    };
    let ((), sent) = tokio::join!(run, send);
    sent.map(Ok)
}
