//! The planner's term and the time of a command.

use warren_types::Timestamp;

use super::Command;

/// The commands with a term, with a time, and with both.
macro_rules! timing {
    (
        term and at: $($both:ident)*;
        term: $($planned:ident)*;
        at: $($timed:ident)*;
    ) => {
        impl Command {
            /// The term of the planner; `None` for requests of users and workers.
            pub fn planner_term(&self) -> Option<u64> {
                match self {
                    $(Self::$both { term, .. })|* | $(Self::$planned { term, .. })|* => Some(*term),
                    $(Self::$timed { .. })|* => None,
                    Self::Ca(command) => command.planner_term(),
                    Self::Key(command) => command.planner_term(),
                }
            }

            /// The leader's time; `None` if it does not matter.
            pub fn at(&self) -> Option<Timestamp> {
                match self {
                    $(Self::$both { at, .. })|* | $(Self::$timed { at, .. })|* => Some(*at),
                    $(Self::$planned { .. })|* => None,
                    Self::Ca(command) => Some(command.at()),
                    Self::Key(command) => Some(command.at()),
                }
            }

            /// Sets the time: the proposer's replaces that of the creator.
            pub fn set_at(&mut self, time: Timestamp) {
                match self {
                    $(Self::$both { at, .. })|* | $(Self::$timed { at, .. })|* => *at = time,
                    $(Self::$planned { .. })|* => {}
                    Self::Ca(command) => command.set_at(time),
                    Self::Key(command) => command.set_at(time),
                }
            }
        }
    };
}

timing! {
    term and at: CreateTasks AssignTasks SetDesiredTaskState DeleteTokens SetNodeStatus AdvanceRollout
        ReleaseAddresses BeginVerification RecordVerification;
    term: DeleteTasks DeleteService RaiseFeatureLevel DeleteMember;
    at:
        CreateCluster UpdateCluster
        CreateService ScaleService UpdateService RollbackService ResumeRollout RemoveService
        RegisterNode UpdateNode RemoveNode JoinNode OpenSession SetNodeConditions RequestVerification
        CreateToken RemoveToken CreateUser UpdateUser RemoveUser LoginUser SetAdministratorKey SetNodeKey
        CreateSecretObject UpdateSecretObject RemoveSecretObject
        CreateVolume RemoveVolume DeleteVolume ReportVolumes
        CreateNetwork RemoveNetwork
        RecordImport
        ReportTasks
        RegisterMember JoinManager UpdateMember RemoveMember;
}
