//! Every task wrote a line to each of its outputs; those of a service with the image `pending` say why not.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

use super::{FakeApi, ResponseStream, missing};

fn line(stream: v1::LogStream, text: &[u8]) -> Entry {
    let (at_ns, stream) = (1_795_184_280_120_000_000, stream.into());
    let text = text.to_vec().into();
    Entry::Line(v1::LogLine { at_ns, stream, text, partial: false })
}

#[tonic::async_trait]
impl v1::logs_server::Logs for FakeApi {
    type ReadStream = ResponseStream<v1::LogEntry>;

    async fn read(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        state.logs_asked.push(request.clone());
        let service = state.find(&request.service);
        let expected = |task: &&v1::Task| match &service {
            Ok(service) => task.service_id == service.id,
            Err(_) => {
                request.task == task.id || request.task == format!("{}.{}", task.service_name, task.slot)
            }
        };
        let tasks: Vec<v1::Task> = state.tasks.values().filter(expected).cloned().collect();
        if tasks.is_empty() && service.is_err() {
            return Err(missing("task", &format!("{}{}", request.service, request.task)));
        }
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(async move {
            let mut entries = Vec::new();
            for task in tasks {
                let reported = match task.spec.unwrap().image.as_str() {
                    "pending" => vec![Entry::GapReason("it has no node yet".to_owned())],
                    _ => vec![line(v1::LogStream::Out, b"hello \xff"), line(v1::LogStream::Err, b"oops")],
                };
                entries.extend(reported.into_iter().map(|entry| v1::LogEntry {
                    task_id: task.id.clone(),
                    service_name: task.service_name.clone(),
                    slot: task.slot,
                    node_name: task.node_name.clone(),
                    entry: Some(entry),
                }));
            }
            // A follower gets the same line repeatedly, until the client disconnects.
            loop {
                for entry in entries.clone() {
                    if sender.send(Ok(entry)).await.is_err() {
                        return;
                    }
                }
                if !request.follow {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
