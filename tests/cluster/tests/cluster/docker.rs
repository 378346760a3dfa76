//! Docker's API on the socket of a real manager: raw HTTP, and the CLI of Docker.

mod cli;
mod http;

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;

use crate::fixture::ManagerFixture;
use crate::worker::ScriptedWorker;

/// A worker that runs what it is assigned, whose tasks have written one line each, and which has no volumes. It ends
/// with the test.
async fn run_worker(world: &ManagerFixture) -> JoinHandle<()> {
    let mut worker = ScriptedWorker::dial(world).await;
    tokio::spawn(async move {
        loop {
            worker.apply_assignment().await;
            let asked = timeout(Duration::from_millis(20), worker.next_stream_request()).await;
            let Ok(v1::OpenStream { stream_id, purpose, .. }) = asked else { continue };
            let stream = worker.attach_to(stream_id).await;
            if let Some(Purpose::ReadLogs(_)) = purpose {
                let line = v1::LogLine {
                    at_ns: 1_700_000_000_000_000_000,
                    stream: v1::LogStream::Out.into(),
                    text: b"hello from a task".to_vec().into(),
                    partial: false,
                };
                stream.send(Frame::Lines(v1::LogLines { lines: vec![line] })).await;
            }
            stream.send(Frame::Done(v1::StreamDone {})).await;
            // The manager may read another one first.
            tokio::spawn(stream.wait_closed());
        }
    })
}
