//! Reads the audit lines of all managers, in order of time.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use warren_audit::{AuditCaller, AuditFilter, AuditItem, AuditLine, AuditObject};
use warren_peers::local_calls::AuditStream;
use warren_proto::v1;
use warren_proto::v1::audit_response::Message;
use warren_store::problem::{manager_stopping, status_of};
use warren_types::{MemberId, Violation};

use super::super::Api;

/// Messages that may wait for the client, and of each manager.
const MAX_QUEUED: usize = 64;
/// How long another manager may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a lost manager is asked again.
const RETRY_DELAY: Duration = Duration::from_secs(2);

type AuditSender = mpsc::Sender<Result<v1::AuditResponse, Status>>;

fn response(message: Message) -> v1::AuditResponse {
    v1::AuditResponse { message: Some(message) }
}

fn show(line: &AuditLine) -> v1::AuditLine {
    let AuditLine { version: _, number, time, manager, caller, method, object, outcome, .. } = line.clone();
    let AuditCaller { kind, id, name, role, address, uid } = caller;
    let object = object.map(|object| {
        let AuditObject { kind, id, name, version, detail } = object;
        v1::AuditObject { kind, id, name, version, detail }
    });
    v1::AuditLine {
        number,
        at: time,
        manager_name: manager,
        caller: Some(v1::AuditCaller { kind, id, name, role, address, uid }),
        method,
        object,
        outcome: outcome.as_str().to_owned(),
        code: line.code.clone(),
        reason: line.reason.clone(),
        suppressed: line.suppressed,
        lost: line.lost,
    }
}

impl Api {
    /// The lines of this manager.
    pub(in crate::audit) async fn own_audit(
        &self,
        request: v1::AuditRequest,
    ) -> ReceiverStream<v1::AuditResponse> {
        let v1::AuditRequest { follow, since, until, user, method, after } = request;
        let filter = AuditFilter { after, since, until, user, method };
        let mut items = self.audit.log.read(filter, follow).await;
        let (sink, output) = mpsc::channel(MAX_QUEUED);
        let (manager_name, stop) = (self.audit.manager.to_string(), self.shutdown.token());
        self.shutdown.spawn("audit", async move {
            loop {
                let item = tokio::select! {
                    item = items.recv() => item,
                    () = stop.cancelled() => None,
                    () = sink.closed() => None,
                };
                let message = match item {
                    None => return,
                    Some(AuditItem::Line(line)) => Message::Line(show(&line)),
                    Some(AuditItem::Warning(message)) => {
                        Message::Warning(v1::AuditWarning { manager_name: manager_name.clone(), message })
                    }
                    Some(AuditItem::CaughtUp) => Message::CaughtUp(v1::AuditCaughtUp {}),
                };
                if sink.send(response(message)).await.is_err() {
                    return;
                }
            }
        });
        ReceiverStream::new(output)
    }

    /// The lines of this manager, for another one.
    pub(crate) async fn serve_own_audit(&self, request: v1::AuditRequest) -> AuditStream {
        Box::pin(self.own_audit(request).await.map(Ok))
    }

    /// The lines of all managers.
    ///
    /// # Errors
    /// The end is before the start.
    pub(crate) fn merge_audit(
        &self,
        request: v1::AuditRequest,
    ) -> Result<ReceiverStream<Result<v1::AuditResponse, Status>>, Status> {
        if let (Some(since), Some(until)) = (request.since, request.until)
            && until <= since
        {
            return Err(status_of(Violation::new("until", "is not after since")));
        }
        if request.follow && request.until.is_some() {
            return Err(status_of(Violation::new("until", "cannot be combined with follow")));
        }
        let request = v1::AuditRequest { after: 0, ..request };
        let (messages, output) = mpsc::channel(MAX_QUEUED);
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("audit", async move {
            tokio::select! {
                () = api.send_audit(request, &messages) => {}
                () = messages.closed() => {}
                () = stop.cancelled() => drop(messages.try_send(Err(manager_stopping()))),
            }
        });
        Ok(ReceiverStream::new(output))
    }

    async fn send_audit(&self, request: v1::AuditRequest, messages: &AuditSender) {
        let mut readers = JoinSet::new();
        let mut inputs = Vec::new();
        let published = self.store.read();
        for member in published.state.members().filter(|member| member.member_id != self.member_id) {
            let (sink, input) = mpsc::channel(MAX_QUEUED);
            inputs.push(MergeInput::new(input));
            let (api, id, name) = (self.clone(), member.member_id, member.name.to_string());
            readers.spawn(api.read_manager(id, name, request.clone(), sink));
        }
        let (sink, input) = mpsc::channel(MAX_QUEUED);
        inputs.push(MergeInput::new(input));
        let mut own = self.own_audit(request).await;
        readers.spawn(async move {
            while let Some(message) = own.next().await {
                if sink.send(message).await.is_err() {
                    return;
                }
            }
        });
        merge(inputs, messages).await;
    }

    /// Passes on the lines of another manager. With `follow`, a lost one is asked again.
    async fn read_manager(
        self,
        member: MemberId,
        name: String,
        mut request: v1::AuditRequest,
        sink: mpsc::Sender<v1::AuditResponse>,
    ) {
        let mut is_warned = false;
        let mut is_caught_up = false;
        loop {
            let read = self.read_manager_once(member, &mut request, &mut is_caught_up, &sink).await;
            let why = match read {
                Ok(()) if !request.follow => return,
                Ok(()) => "the manager ended the stream".to_owned(),
                Err(status) => status.message().to_owned(),
            };
            let message = format!("the audit lines of manager {name} are missing: {why}");
            let warning = v1::AuditWarning { manager_name: name.clone(), message };
            if !is_warned && sink.send(response(Message::Warning(warning))).await.is_err() {
                return;
            }
            is_warned = true;
            if !request.follow {
                return;
            }
            // The others are not waited for it.
            if !is_caught_up {
                is_caught_up = true;
                if sink.send(response(Message::CaughtUp(v1::AuditCaughtUp {}))).await.is_err() {
                    return;
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }

    async fn read_manager_once(
        &self,
        member: MemberId,
        request: &mut v1::AuditRequest,
        is_caught_up: &mut bool,
        sink: &mpsc::Sender<v1::AuditResponse>,
    ) -> Result<(), Status> {
        let client = self.peers.client(member);
        let mut client = client.ok_or_else(|| Status::unavailable("it is not reachable"))?;
        let late =
            |_| Status::unavailable(format!("it did not answer within {} s", ANSWER_TIMEOUT.as_secs()));
        let opened = timeout(ANSWER_TIMEOUT, client.read_audit(request.clone())).await;
        let mut stream = opened.map_err(late)??.into_inner();
        while let Some(answer) = stream.message().await? {
            match &answer.message {
                Some(Message::Line(line)) => request.after = line.number,
                Some(Message::CaughtUp(_)) if std::mem::replace(is_caught_up, true) => continue,
                _ => {}
            }
            if sink.send(answer).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The messages of one manager.
struct MergeInput {
    messages: mpsc::Receiver<v1::AuditResponse>,
    /// The next existing line, once it has arrived.
    next: Option<v1::AuditLine>,
    /// No line follows, or only new ones.
    is_caught_up: bool,
}

impl MergeInput {
    fn new(messages: mpsc::Receiver<v1::AuditResponse>) -> Self {
        Self { messages, next: None, is_caught_up: false }
    }

    /// Waits for the next existing line. Warnings are passed on at once.
    async fn fill(&mut self, out: &AuditSender) {
        while self.next.is_none() && !self.is_caught_up {
            match self.messages.recv().await.map(|answer| answer.message) {
                Some(Some(Message::Line(line))) => self.next = Some(line),
                Some(Some(Message::Warning(warning))) => {
                    // The client may have left, which the next line shows.
                    let _ = out.send(Ok(response(Message::Warning(warning)))).await;
                }
                Some(Some(Message::CaughtUp(_))) | None => self.is_caught_up = true,
                // A later version's.
                Some(None) => {}
            }
        }
    }
}

/// Sends existing lines by time, lines of one manager in the order they were written; then new ones as they arrive.
async fn merge(mut inputs: Vec<MergeInput>, out: &AuditSender) {
    loop {
        for input in &mut inputs {
            input.fill(out).await;
        }
        let waiting = inputs.iter_mut().map(|input| &mut input.next).filter(|next| next.is_some());
        let oldest = waiting.min_by_key(|next| next.as_ref().map(|line| line.at));
        let Some(line) = oldest.and_then(Option::take) else { break };
        if out.send(Ok(response(Message::Line(line)))).await.is_err() {
            return;
        }
    }
    let mut later = tokio_stream::StreamMap::new();
    for (number, input) in inputs.into_iter().enumerate() {
        later.insert(number, ReceiverStream::new(input.messages));
    }
    while let Some((_, answer)) = later.next().await {
        let is_for_managers = matches!(answer.message, Some(Message::CaughtUp(_)) | None);
        if !is_for_managers && out.send(Ok(answer)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(manager: &str, at: u64) -> v1::AuditResponse {
        response(Message::Line(v1::AuditLine { manager_name: manager.into(), at, ..Default::default() }))
    }

    #[tokio::test]
    async fn lines_are_merged_by_time_and_then_followed() {
        let input = |messages: Vec<v1::AuditResponse>| {
            let (sink, input) = mpsc::channel(MAX_QUEUED);
            for message in messages {
                sink.try_send(message).unwrap();
            }
            MergeInput::new(input)
        };
        let caught_up = || response(Message::CaughtUp(v1::AuditCaughtUp {}));
        let warning = v1::AuditWarning { manager_name: "m3".into(), message: "away".into() };
        let one = input(vec![line("m1", 1), line("m1", 4), line("m1", 3), caught_up()]);
        let two = input(vec![line("m2", 2), line("m2", 5), caught_up(), line("m2", 9)]);
        let three = input(vec![response(Message::Warning(warning)), caught_up()]);
        let (out, mut output) = mpsc::channel(MAX_QUEUED);
        merge(vec![one, two, three], &out).await;
        drop(out);
        let mut seen = Vec::new();
        while let Some(answer) = output.recv().await {
            seen.push(match answer.unwrap().message.unwrap() {
                Message::Line(line) => format!("{}@{}", line.at, line.manager_name),
                Message::Warning(warning) => format!("{} {}", warning.manager_name, warning.message),
                Message::CaughtUp(_) => "caught up".into(),
            });
        }
        assert_eq!(seen, ["m3 away", "1@m1", "2@m2", "4@m1", "3@m1", "5@m2", "9@m2"]);
    }
}
