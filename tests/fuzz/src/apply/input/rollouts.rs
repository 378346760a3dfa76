//! Steps about settings of the cluster, rollouts, and the data of volumes.

use std::time::Duration;

use arbitrary::Result;
use warren_core::state::{HeldVolumes, VolumeData};
use warren_core::{Command, RolloutStep};
use warren_types::{
    Bytes, ClusterSettingsChange, DataPlane, FailureAction, FailureOutcome, FailureRatio, Parallelism,
    PauseCause, RolloutFailure, Timestamp, UpdateOrder, UpdatePolicy, UserNamespace, VerificationChange,
    VolumeDriver,
};

use super::FuzzInput;

impl FuzzInput<'_> {
    pub(super) fn rollout_command(&mut self, kind: u8, at: Timestamp) -> Result<Command> {
        Ok(match kind % 8 {
            0 => {
                let (version, max_replicas_per_service) = (self.version()?, self.optional_small()?);
                let task_history_limit = self.optional_small()?;
                let data_plane = task_history_limit.map(|limit| DataPlane::ALL[limit as usize % 3]);
                // Rarely, so that most nodes get tasks.
                let enabled = max_replicas_per_service.filter(|limit| *limit == 5).map(|_| true);
                let verification = VerificationChange { enabled, ..Default::default() };
                let change = ClusterSettingsChange {
                    verification,
                    data_plane,
                    default_user_namespace: data_plane.map(|_| UserNamespace::Private),
                    no_new_privileges: data_plane.map(|plane| plane == DataPlane::Routes),
                    max_replicas_per_service,
                    task_history_limit,
                    ..Default::default()
                };
                Command::UpdateCluster { version, change, at }
            }
            1 | 2 => {
                let (term, service, revision) = (self.number(3, 1)?, self.service()?, self.number(1, 4)?);
                Command::AdvanceRollout {
                    term,
                    service,
                    revision,
                    step: self.rollout_step(revision, at)?,
                    at,
                }
            }
            3 => Command::ResumeRollout { id: self.service()?, version: self.version()?, at },
            4 => {
                let (id, version, mut spec) = (self.service()?, self.version()?, self.spec()?);
                (spec.update, spec.rollback) = (self.policy()?, self.policy()?);
                Command::UpdateService { id, version, spec, force: self.sometimes()?, at }
            }
            5 => {
                let (node, session, is_truncated) = (self.node()?, self.number(1, 4)?, self.sometimes()?);
                let name = |input: &mut Self| Ok(input.name()?.parse().expect("the name is valid"));
                let names = self.list(3, name)?.into_iter().collect();
                Command::ReportVolumes { node, session, held: HeldVolumes { names, is_truncated }, at }
            }
            6 => {
                let (id, name) = (self.volume()?, self.name()?.parse().expect("the name is valid"));
                let (driver, reuse) = (VolumeDriver::Local, !self.sometimes()?);
                let node = if self.sometimes()? { Some(self.node()?) } else { None };
                let (options, labels) = Default::default();
                Command::CreateVolume { id, name, driver, options, labels, node, reuse, at }
            }
            _ => {
                let (id, purge, byte) = (self.volume()?, self.sometimes()?, self.byte()?);
                let known = VolumeData::Present(Some(Bytes(u64::from(byte))));
                let data = [VolumeData::Unknown, VolumeData::Present(None), known][usize::from(byte % 3)];
                Command::RemoveVolume { id, purge, data, at }
            }
        })
    }

    fn optional_small(&mut self) -> Result<Option<u32>> {
        if self.sometimes()? { Ok(None) } else { self.small().map(Some) }
    }

    fn rollout_step(&mut self, revision: u64, at: Timestamp) -> Result<RolloutStep> {
        let kind = self.byte()?;
        Ok(match kind % 4 {
            // A rare byte, so that earlier inputs decode the same.
            _ if kind == u8::MAX - 1 => RolloutStep::ImageUnresolved("no answer".into()),
            _ if kind == u8::MAX => {
                let digit = if self.sometimes()? { "a" } else { "b" };
                let digest = format!("sha256:{}", digit.repeat(64));
                RolloutStep::ImagePinned(digest.parse().expect("the digest is valid"))
            }
            0 => RolloutStep::Updated(self.small()?),
            1 => RolloutStep::Completed,
            _ => {
                let causes = [
                    PauseCause::Policy,
                    PauseCause::DataMayHaveChanged,
                    PauseCause::NoGoodRevision,
                    PauseCause::NotRestorable,
                    PauseCause::IsRollback,
                ];
                let outcome = match self.sometimes()? {
                    true => FailureOutcome::RolledBack { to: self.number(1, 4)? },
                    false => FailureOutcome::Paused(*self.0.choose(&causes)?),
                };
                let (task, slot, reason) = (self.task()?, self.small()?, self.short_text()?.into());
                RolloutStep::Failed(RolloutFailure { revision, task, slot, reason, at, outcome })
            }
        })
    }

    fn policy(&mut self) -> Result<UpdatePolicy> {
        // What the API cannot parse cannot be encoded.
        let (byte, ratio) = (self.byte()?, self.number(0, 1000)?.min(1000));
        let parallelism = match self.sometimes()? {
            true => Parallelism::Percent(1 + byte % 100),
            false => Parallelism::Slots(u32::from(byte % 8)),
        };
        let orders = [None, Some(UpdateOrder::StartFirst), Some(UpdateOrder::StopFirst)];
        let actions =
            [None, Some(FailureAction::Rollback), Some(FailureAction::Pause), Some(FailureAction::Continue)];
        Ok(UpdatePolicy {
            parallelism,
            delay: Duration::from_millis(self.number(0, 4000)?),
            order: *self.0.choose(&orders)?,
            monitor: Duration::from_millis(self.number(0, 4000)?),
            failure_ratio: FailureRatio(u16::try_from(ratio).unwrap_or(u16::MAX)),
            on_failure: *self.0.choose(&actions)?,
        })
    }
}
