//! The planner's term and the time of a command.

use warren_types::Timestamp;

use super::Command;

impl Command {
    /// The term of the planner; `None` for requests of users and workers.
    pub fn planner_term(&self) -> Option<u64> {
        match self {
            Self::CreateTasks { term, .. }
            | Self::AssignTasks { term, .. }
            | Self::SetDesiredTaskState { term, .. }
            | Self::DeleteTasks { term, .. }
            | Self::DeleteService { term, .. }
            | Self::DeleteTokens { term, .. }
            | Self::SetNodeStatus { term, .. }
            | Self::AdvanceRollout { term, .. }
            | Self::RaiseFeatureLevel { term, .. }
            | Self::DeleteMember { term, .. } => Some(*term),
            Self::CreateCluster { .. }
            | Self::UpdateCluster { .. }
            | Self::CreateService { .. }
            | Self::ScaleService { .. }
            | Self::RemoveService { .. }
            | Self::UpdateService { .. }
            | Self::RollbackService { .. }
            | Self::ResumeRollout { .. }
            | Self::RegisterNode { .. }
            | Self::UpdateNode { .. }
            | Self::RemoveNode { .. }
            | Self::CreateToken { .. }
            | Self::RemoveToken { .. }
            | Self::JoinNode { .. }
            | Self::OpenSession { .. }
            | Self::CreateSecretObject { .. }
            | Self::UpdateSecretObject { .. }
            | Self::RemoveSecretObject { .. }
            | Self::CreateVolume { .. }
            | Self::RemoveVolume { .. }
            | Self::DeleteVolume { .. }
            | Self::SetNodeConditions { .. }
            | Self::ReportVolumes { .. }
            | Self::ReportTasks { .. }
            | Self::RegisterMember { .. }
            | Self::JoinManager { .. }
            | Self::UpdateMember { .. }
            | Self::RemoveMember { .. } => None,
        }
    }

    /// The leader's time; `None` if it does not matter.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::CreateCluster { at, .. }
            | Self::UpdateCluster { at, .. }
            | Self::CreateService { at, .. }
            | Self::ScaleService { at, .. }
            | Self::RemoveService { at, .. }
            | Self::CreateTasks { at, .. }
            | Self::AssignTasks { at, .. }
            | Self::SetDesiredTaskState { at, .. }
            | Self::SetNodeStatus { at, .. }
            | Self::UpdateService { at, .. }
            | Self::RollbackService { at, .. }
            | Self::AdvanceRollout { at, .. }
            | Self::ResumeRollout { at, .. }
            | Self::RegisterNode { at, .. }
            | Self::UpdateNode { at, .. }
            | Self::RemoveNode { at, .. }
            | Self::CreateToken { at, .. }
            | Self::RemoveToken { at, .. }
            | Self::DeleteTokens { at, .. }
            | Self::JoinNode { at, .. }
            | Self::OpenSession { at, .. }
            | Self::CreateSecretObject { at, .. }
            | Self::UpdateSecretObject { at, .. }
            | Self::RemoveSecretObject { at, .. }
            | Self::CreateVolume { at, .. }
            | Self::RemoveVolume { at, .. }
            | Self::DeleteVolume { at, .. }
            | Self::SetNodeConditions { at, .. }
            | Self::ReportVolumes { at, .. }
            | Self::ReportTasks { at, .. }
            | Self::RegisterMember { at, .. }
            | Self::JoinManager { at, .. }
            | Self::UpdateMember { at, .. }
            | Self::RemoveMember { at, .. } => Some(*at),
            Self::DeleteTasks { .. }
            | Self::DeleteService { .. }
            | Self::RaiseFeatureLevel { .. }
            | Self::DeleteMember { .. } => None,
        }
    }

    /// Sets the time: the proposer's replaces that of the creator.
    pub fn set_at(&mut self, time: Timestamp) {
        match self {
            Self::CreateCluster { at, .. }
            | Self::UpdateCluster { at, .. }
            | Self::CreateService { at, .. }
            | Self::ScaleService { at, .. }
            | Self::RemoveService { at, .. }
            | Self::CreateTasks { at, .. }
            | Self::AssignTasks { at, .. }
            | Self::SetDesiredTaskState { at, .. }
            | Self::SetNodeStatus { at, .. }
            | Self::UpdateService { at, .. }
            | Self::RollbackService { at, .. }
            | Self::AdvanceRollout { at, .. }
            | Self::ResumeRollout { at, .. }
            | Self::RegisterNode { at, .. }
            | Self::UpdateNode { at, .. }
            | Self::RemoveNode { at, .. }
            | Self::CreateToken { at, .. }
            | Self::RemoveToken { at, .. }
            | Self::DeleteTokens { at, .. }
            | Self::JoinNode { at, .. }
            | Self::OpenSession { at, .. }
            | Self::CreateSecretObject { at, .. }
            | Self::UpdateSecretObject { at, .. }
            | Self::RemoveSecretObject { at, .. }
            | Self::CreateVolume { at, .. }
            | Self::RemoveVolume { at, .. }
            | Self::DeleteVolume { at, .. }
            | Self::SetNodeConditions { at, .. }
            | Self::ReportVolumes { at, .. }
            | Self::ReportTasks { at, .. }
            | Self::RegisterMember { at, .. }
            | Self::JoinManager { at, .. }
            | Self::UpdateMember { at, .. }
            | Self::RemoveMember { at, .. } => *at = time,
            Self::DeleteTasks { .. }
            | Self::DeleteService { .. }
            | Self::RaiseFeatureLevel { .. }
            | Self::DeleteMember { .. } => {}
        }
    }
}
