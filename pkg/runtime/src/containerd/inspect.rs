//! Lists and inspects containers: records by list, processes one by one, because a list of processes waits
//! for the slowest.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::{Container, GetRequest, ListContainersRequest};
use containerd_client::types::v1::{Process as Shown, Status as Stage};
use futures::{StreamExt, stream};
use warren_image::{CallError, with_deadline};

use super::{Inner, LIST_TIMEOUT, RECORD_TIMEOUT, STATE_TIMEOUT, record};
use crate::Result;
use crate::container::{ContainerId, ContainerStatus, ProcessExit, ProcessState};
use crate::error::Error;

/// Maximum concurrent process queries.
const MAX_CONCURRENT_QUERIES: usize = 16;

impl Inner {
    pub(super) async fn list(&self) -> Result<Vec<ContainerStatus>> {
        let (records, snapshots) = tokio::try_join!(self.records(), self.snapshots())?;
        let asked = stream::iter(records).map(|record| async {
            let process = match ContainerId::parse(&record.id) {
                Ok(id) => self.process(&id).await?,
                Err(error) => ProcessState::Unknown { reason: error.to_string() },
            };
            let snapshot = snapshots.contains(&record.snapshot_key);
            Ok::<_, Error>(record::parse_record(record, process, snapshot))
        });
        let answers: Vec<Result<Option<ContainerStatus>>> =
            asked.buffer_unordered(MAX_CONCURRENT_QUERIES).collect().await;
        let mut found: Vec<ContainerStatus> =
            answers.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?;
        found.sort_by(|a, b| a.id.cmp(&b.id));
        self.watcher.retain(|id| found.binary_search_by(|each| each.id.cmp(id)).is_ok());
        Ok(found)
    }

    pub(super) async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        let Some(record) = self.get_record(id).await? else { return Ok(None) };
        let key = record.snapshot_key.clone();
        let (process, snapshot) = tokio::try_join!(self.process(id), self.has_snapshot(&key))?;
        Ok(record::parse_record(record, process, snapshot))
    }

    pub(super) async fn records(&self) -> Result<Vec<Container>> {
        let request = self.connection.request(ListContainersRequest { filters: Vec::new() });
        let call = async {
            // Streamed: a long list with assignments can exceed the size of one message.
            let mut replies = self.connection.containers().list_stream(request).await?.into_inner();
            let mut records = Vec::new();
            while let Some(reply) = replies.next().await {
                records.extend(reply?.container);
            }
            Ok(records)
        };
        let records =
            tokio::time::timeout(LIST_TIMEOUT, call).await.unwrap_or_else(|_| Err(timed_out(LIST_TIMEOUT)));
        records.map_err(|status: tonic::Status| Error::from_status("list containers", &status))
    }

    /// Keys of all writable snapshots in the namespace.
    pub(super) async fn snapshots(&self) -> Result<BTreeSet<String>> {
        let all = self.list_snapshots().await?;
        let active = all.into_iter().filter(|info| info.kind() == snap::Kind::Active);
        Ok(active.map(|info| info.name).collect())
    }

    pub(super) async fn list_snapshots(&self) -> Result<Vec<snap::Info>> {
        let snapshotter = self.settings.snapshotter.clone();
        let request =
            self.connection.request(snap::ListSnapshotsRequest { snapshotter, filters: Vec::new() });
        let call = async {
            let mut replies = self.connection.snapshots().list(request).await?.into_inner();
            let mut infos = Vec::new();
            while let Some(reply) = replies.next().await {
                infos.extend(reply?.info);
            }
            Ok(infos)
        };
        let infos =
            tokio::time::timeout(LIST_TIMEOUT, call).await.unwrap_or_else(|_| Err(timed_out(LIST_TIMEOUT)));
        infos.map_err(|status: tonic::Status| Error::from_status("list snapshots", &status))
    }

    async fn has_snapshot(&self, key: &str) -> Result<bool> {
        let snapshotter = self.settings.snapshotter.clone();
        let request = self.connection.request(snap::StatSnapshotRequest { snapshotter, key: key.to_owned() });
        match with_deadline(RECORD_TIMEOUT, self.connection.snapshots().stat(request)).await {
            Ok(_) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("look up the file system of {key}"), &status)),
        }
    }

    /// The process of a container. A running process is watched from then on.
    pub(super) async fn process(&self, id: &ContainerId) -> Result<ProcessState> {
        let request = GetRequest { container_id: id.to_string(), exec_id: String::new() };
        let request = self.connection.request(request);
        let shown = match with_deadline(STATE_TIMEOUT, self.connection.tasks().get(request)).await {
            Ok(reply) => reply.process.unwrap_or_default(),
            Err(status) => {
                return match CallError::from_status(&status) {
                    CallError::NotFound => Ok(ProcessState::Absent),
                    CallError::Unavailable => {
                        Err(Error::from_status(format!("inspect container {id}"), &status))
                    }
                    _ => Ok(ProcessState::Unknown { reason: status.message().to_owned() }),
                };
            }
        };
        let process = self.read_process(id, &shown);
        if let ProcessState::Running { pid } = process {
            self.watcher.watch(id, pid);
        }
        Ok(process)
    }

    fn read_process(&self, id: &ContainerId, shown: &Shown) -> ProcessState {
        match shown.status() {
            Stage::Created => ProcessState::Created { pid: shown.pid },
            Stage::Running | Stage::Paused | Stage::Pausing => ProcessState::Running { pid: shown.pid },
            Stage::Stopped => ProcessState::Stopped(ProcessExit {
                code: shown.exit_status,
                at: system_time(shown.exited_at),
                out_of_memory: self.watcher.had_oom_kill(id),
            }),
            Stage::Unknown => {
                ProcessState::Unknown { reason: "its supervisor does not know its state".to_owned() }
            }
        }
    }
}

fn timed_out(deadline: Duration) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!("no answer within {deadline:?}"))
}

/// A timestamp of containerd; a missing one, or one before 1970, counts as now.
pub(super) fn system_time(stamp: Option<prost_types::Timestamp>) -> SystemTime {
    let since = stamp.and_then(|stamp| {
        let (seconds, nanos) = (u64::try_from(stamp.seconds).ok()?, u32::try_from(stamp.nanos).ok()?);
        Some(Duration::new(seconds, nanos))
    });
    since.map_or_else(SystemTime::now, |since| SystemTime::UNIX_EPOCH + since)
}
