//! Progress of tasks whose nodes have their sessions with other managers: while somebody watches here, each of those
//! managers is listened to, once for all who watch.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use warren_proto::v1;
use warren_types::{MemberId, NodeId, TaskReport};

use super::Api;
use super::problem::stopping;
use crate::background;

/// Whether other managers came or went is looked at this often, and one that broke off is dialled again after it.
const AGAIN: Duration = Duration::from_secs(1);
/// News that may wait for another manager.
const NEWS: usize = 256;

/// Who listens to other managers. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Ears(Arc<Mutex<Weak<DropGuard>>>);

/// As long as somebody has one, the other managers are listened to.
#[derive(Debug)]
pub struct Listens {
    _until_dropped: Arc<DropGuard>,
}

impl Api {
    /// Listens to the other managers until the answer is dropped; what they say is in the registry.
    pub(super) fn listen(&self) -> Listens {
        let mut listening = self.ears.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(guard) = listening.upgrade() {
            return Listens { _until_dropped: guard };
        }
        let stop = CancellationToken::new();
        let guard = Arc::new(stop.clone().drop_guard());
        *listening = Arc::downgrade(&guard);
        let api = self.clone();
        background::spawn(&self.shutdown, "progress", async move {
            let registry = api.registry.clone();
            tokio::select! {
                () = api.listen_to_all() => {}
                () = stop.cancelled() => {}
            }
            // Somebody may listen again by now, who hears what is dropped here with the next word on it.
            registry.elsewhere().clear();
        });
        Listens { _until_dropped: guard }
    }

    async fn listen_to_all(self) {
        let (mut listened, mut listeners) = (BTreeSet::new(), JoinSet::new());
        let mut pace = interval(AGAIN);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            while let Some(ended) = listeners.try_join_next() {
                if let Ok(member) = ended {
                    listened.remove(&member);
                }
            }
            let published = self.store.read();
            let others = published.state.members().map(|member| member.member);
            for member in others.filter(|member| *member != self.member) {
                if listened.insert(member) {
                    listeners.spawn(self.clone().listen_to(member));
                }
            }
        }
    }

    /// Until the manager left the cluster.
    async fn listen_to(self, member: MemberId) -> MemberId {
        while self.store.read().state.member(member).is_some() {
            if let Err(status) = self.take_news(member).await {
                tracing::debug!(member, %status, "its progress is not heard");
            }
            self.registry.elsewhere().forget(member);
            sleep(AGAIN).await;
        }
        member
    }

    async fn take_news(&self, member: MemberId) -> Result<(), Status> {
        let Some(mut client) = self.peers.client(member) else { return Ok(()) };
        let mut news = client.progress(v1::ProgressRequest {}).await?.into_inner();
        while let Some(v1::ProgressNews { node_id, report }) = news.message().await? {
            let report = report.map(TaskReport::try_from);
            // What a later version says and this one cannot read is left out.
            let (Ok(node), Some(Ok(report))) = (node_id.parse::<NodeId>(), report) else { continue };
            self.registry.elsewhere().prune(&self.store.read().state);
            self.registry.note_elsewhere(member, node, report);
        }
        Ok(())
    }

    /// What the sessions here hear of progress, for another manager: what is known, then what comes.
    pub fn tell_progress(&self) -> ReceiverStream<Result<v1::ProgressNews, Status>> {
        let (news, stream) = mpsc::channel(NEWS);
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("progress-out", async move {
            tokio::select! {
                () = api.pass_progress_on(&news) => {}
                () = news.closed() => {}
                () = stop.cancelled() => drop(news.try_send(Err(stopping()))),
            }
        });
        ReceiverStream::new(stream)
    }

    async fn pass_progress_on(&self, out: &mpsc::Sender<Result<v1::ProgressNews, Status>>) {
        let mut news = self.registry.news();
        let mut words = self.registry.all_progress();
        loop {
            for (node, report) in words {
                let word = v1::ProgressNews { node_id: node.to_string(), report: Some((&report).into()) };
                if out.send(Ok(word)).await.is_err() {
                    return;
                }
            }
            words = match news.recv().await {
                Ok(task) => {
                    let node = self.store.read().state.task(&task).and_then(|task| task.node);
                    // What was heard elsewhere is not passed on: everybody listens to everybody.
                    let word = node.and_then(|node| Some((node, self.registry.progress(node, &task)?)));
                    word.into_iter().collect()
                }
                Err(RecvError::Lagged(_)) => self.registry.all_progress(),
                Err(RecvError::Closed) => return,
            };
        }
    }
}
