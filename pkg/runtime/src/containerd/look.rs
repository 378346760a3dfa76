//! Finding out what is there: records by list, processes one by one, because a list of them waits for the
//! slowest.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::{Container, GetRequest, ListContainersRequest};
use containerd_client::types::v1::{Process as Shown, Status as Stage};
use futures::{StreamExt, stream};
use oci_spec::runtime as oci;
use warren_image::{Fault, within};

use super::{ASK, LIST, RECORD, Shared, record};
use crate::Result;
use crate::container::{ContainerId, Exit, Found, Process};
use crate::error::Error;
use crate::setup::ProcessSetup;

/// Processes asked about at once.
const PARALLEL: usize = 16;

impl Shared {
    pub(super) async fn list(&self) -> Result<Vec<Found>> {
        let (records, snapshots) = tokio::try_join!(self.records(), self.snapshots())?;
        let asked = stream::iter(records).map(|record| async {
            let process = match ContainerId::parse(&record.id) {
                Ok(id) => self.process(&id).await?,
                Err(error) => Process::Unknown { reason: error.to_string() },
            };
            let snapshot = snapshots.contains(&record.snapshot_key);
            Ok::<_, Error>(record::read(record, process, snapshot))
        });
        let answers: Vec<Result<Option<Found>>> = asked.buffer_unordered(PARALLEL).collect().await;
        let mut found: Vec<Found> =
            answers.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?;
        found.sort_by(|a, b| a.id.cmp(&b.id));
        self.watch.keep(|id| found.binary_search_by(|each| each.id.cmp(id)).is_ok());
        Ok(found)
    }

    pub(super) async fn inspect(&self, id: &ContainerId) -> Result<Option<Found>> {
        let Some(record) = self.get_record(id).await? else { return Ok(None) };
        let key = record.snapshot_key.clone();
        let (process, snapshot) = tokio::try_join!(self.process(id), self.has_snapshot(&key))?;
        Ok(record::read(record, process, snapshot))
    }

    pub(super) async fn process_setup(&self, id: &ContainerId) -> Result<ProcessSetup> {
        let missing = || Error::NotFound { id: id.to_string(), what: "record" };
        let record = self.get_record(id).await?.ok_or_else(missing)?;
        let document = record.spec.map(|spec| spec.value).unwrap_or_default();
        let failed = |reason: String| Error::Failed { action: format!("read how {id} runs"), reason };
        let document: oci::Spec =
            serde_json::from_slice(&document).map_err(|error| failed(error.to_string()))?;
        ProcessSetup::of(&document).map_err(failed)
    }

    pub(super) async fn records(&self) -> Result<Vec<Container>> {
        let request = self.connection.request(ListContainersRequest { filters: Vec::new() });
        let call = async {
            // Streamed: a long list with assignments is larger than one message may be.
            let mut replies = self.connection.containers().list_stream(request).await?.into_inner();
            let mut records = Vec::new();
            while let Some(reply) = replies.next().await {
                records.extend(reply?.container);
            }
            Ok(records)
        };
        let records = tokio::time::timeout(LIST, call).await.unwrap_or_else(|_| Err(late(LIST)));
        records.map_err(|status: tonic::Status| Error::of("list containers", &status))
    }

    /// Keys of all snapshots in the namespace that containers write to.
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
        let infos = tokio::time::timeout(LIST, call).await.unwrap_or_else(|_| Err(late(LIST)));
        infos.map_err(|status: tonic::Status| Error::of("list snapshots", &status))
    }

    async fn has_snapshot(&self, key: &str) -> Result<bool> {
        let snapshotter = self.settings.snapshotter.clone();
        let request = self.connection.request(snap::StatSnapshotRequest { snapshotter, key: key.to_owned() });
        match within(RECORD, self.connection.snapshots().stat(request)).await {
            Ok(_) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("look up the file system of {key}"), &status)),
        }
    }

    /// The process of a container. Seeing it run also makes its end be noticed.
    pub(super) async fn process(&self, id: &ContainerId) -> Result<Process> {
        let request = GetRequest { container_id: id.to_string(), exec_id: String::new() };
        let request = self.connection.request(request);
        let shown = match within(ASK, self.connection.tasks().get(request)).await {
            Ok(reply) => reply.process.unwrap_or_default(),
            Err(status) => {
                return match Fault::of(&status) {
                    Fault::NotFound => Ok(Process::None),
                    Fault::Unavailable => Err(Error::of(format!("ask about container {id}"), &status)),
                    _ => Ok(Process::Unknown { reason: status.message().to_owned() }),
                };
            }
        };
        let process = self.read_process(id, &shown);
        if let Process::Running { pid } = process {
            self.watch.ensure(id, pid);
        }
        Ok(process)
    }

    fn read_process(&self, id: &ContainerId, shown: &Shown) -> Process {
        match shown.status() {
            Stage::Created => Process::Created { pid: shown.pid },
            Stage::Running | Stage::Paused | Stage::Pausing => Process::Running { pid: shown.pid },
            Stage::Stopped => Process::Stopped(Exit {
                code: shown.exit_status,
                at: time(shown.exited_at),
                out_of_memory: self.watch.out_of_memory(id),
            }),
            Stage::Unknown => {
                Process::Unknown { reason: "its supervisor does not know its state".to_owned() }
            }
        }
    }
}

fn late(deadline: Duration) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!("no answer within {deadline:?}"))
}

/// A timestamp of containerd's; one that is missing or before 1970 counts as now.
pub(super) fn time(stamp: Option<prost_types::Timestamp>) -> SystemTime {
    let since = stamp.and_then(|stamp| {
        let (seconds, nanos) = (u64::try_from(stamp.seconds).ok()?, u32::try_from(stamp.nanos).ok()?);
        Some(Duration::new(seconds, nanos))
    });
    since.map_or_else(SystemTime::now, |since| SystemTime::UNIX_EPOCH + since)
}
