//! Enums.

use warren_types::spec::{
    FailureAction, ImageResolver, Propagation, PullPolicy, RestartCondition, UpdateOrder, UserNamespace,
};
use warren_types::{
    Availability, CaPhase, DataPlane, DesiredTaskState, EndpointMode, Health, KeyPhase, NodeCheckOutcome,
    NodeCondition, NodeRole, NodeStatus, PauseCause, Protocol, PublishMode, SecretObjectKind, Suffrage,
    TaskState, UserRole, VerificationState, Violation, Violations,
};

use super::fields::unknown_enum_value;
use super::wire_form::WireForm;
use crate::v1;

/// Enums with the same variants on the wire, which may have `UNSPECIFIED` as well, and the hint for other numbers.
macro_rules! enums {
    ($($type:ident { $($variant:ident)* } $expected:literal;)*) => {$(
        impl From<$type> for v1::$type {
            fn from(value: $type) -> Self {
                match value {
                    $($type::$variant => Self::$variant),*
                }
            }
        }

        impl WireForm<i32> for $type {
            fn to_wire(&self) -> i32 {
                v1::$type::from(*self).into()
            }

            fn from_wire(wire: i32) -> Result<Self, Violations> {
                match v1::$type::try_from(wire) {
                    $(Ok(v1::$type::$variant) => Ok(Self::$variant),)*
                    #[allow(unreachable_patterns)] // Without `UNSPECIFIED`, only unknown numbers are left.
                    Ok(_) | Err(_) => Err(unknown_enum_value(wire, $expected)),
                }
            }
        }
    )*};
}

enums! {
    Availability { Active Pause Drain } "active, pause or drain";
    CaPhase { Managers Nodes Complete } "managers, nodes or complete";
    NodeCheckOutcome { Passed Warning Failed } "passed, warning or failed";
    DataPlane { Vxlan Wireguard Routes } "vxlan, wireguard or routes";
    DesiredTaskState { Ready Running Shutdown Remove } "READY, RUNNING, SHUTDOWN or REMOVE";
    EndpointMode { Vip Dnsrr } "vip or dnsrr";
    FailureAction { Rollback Pause Continue } "rollback, pause or continue";
    Health { None Starting Healthy Unhealthy } "none, starting, healthy or unhealthy";
    KeyPhase { Disks Managers Objects Complete } "disks, managers, objects or complete";
    NodeCondition {
        RuntimeUnavailable NetworkUnavailable DiskPressure MemoryPressure ClockSkew RangeConflict NetworkDegraded
        PeersUnreachable
    } "a condition that this version supports";
    NodeRole { Worker Manager } "worker or manager";
    UserRole { Viewer Operator Admin } "viewer, operator or admin";
    NodeStatus { Unknown Ready Down } "UNKNOWN, READY or DOWN";
    PauseCause {
        Policy DataMayHaveChanged NoGoodRevision NotRestorable IsRollback
    } "a cause that this version supports";
    Propagation { Private Slave Shared } "rprivate, rslave or rshared";
    Protocol { Tcp Udp Sctp } "tcp, udp or sctp";
    PublishMode { Host Ingress } "host or ingress";
    PullPolicy { Missing Always Never } "missing, always or never";
    ImageResolver { Manager Worker } "manager or worker";
    RestartCondition { Any OnFailure None } "any, on-failure or none";
    SecretObjectKind { Secret Config Credential } "secret, config or credential";
    Suffrage { Voter Learner } "voter or learner";
    TaskState {
        New Pending Assigned Accepted Preparing Ready Starting Running Complete Shutdown Failed Rejected
    } "a state that this version supports";
    UpdateOrder { StartFirst StopFirst } "start-first or stop-first";
    UserNamespace { Host Private } "host or private";
    VerificationState { Unverified Pending InProgress Verified Failed } "a state that this version supports";
}

/// Enums that are `UNSPECIFIED` for `None`.
macro_rules! optional_enums {
    ($($type:ident)*) => {$(
        impl WireForm<i32> for Option<$type> {
            fn to_wire(&self) -> i32 {
                self.map_or(0, |value| value.to_wire())
            }

            fn from_wire(wire: i32) -> Result<Self, Violations> {
                (wire != 0).then(|| <$type>::from_wire(wire)).transpose()
            }
        }
    )*};
}

optional_enums! { FailureAction Suffrage UpdateOrder UserNamespace }

/// Functions that read an enum from its number on the wire. The violation's path is empty: nest it under the field's.
macro_rules! readers {
    ($($name:ident: $type:ident)*) => {$(
        #[doc = concat!("The [`", stringify!($type), "`] of a number on the wire.")]
        ///
        /// # Errors
        /// The number is unknown; the path is empty: nest it under the field's.
        pub fn $name(wire: i32) -> Result<$type, Violations> {
            WireForm::from_wire(wire)
        }
    )*};
}

readers! {
    availability: Availability
    ca_phase: CaPhase
    data_plane: DataPlane
    desired_task_state: DesiredTaskState
    health: Health
    key_phase: KeyPhase
    node_condition: NodeCondition
    node_role: NodeRole
    node_status: NodeStatus
    secret_object_kind: SecretObjectKind
    task_state: TaskState
    user_namespace: UserNamespace
    user_role: UserRole
}

/// The desired suffrage of a manager; `None` if unspecified.
///
/// # Errors
/// The number is unknown; the path is `desiredSuffrage`.
pub fn suffrage(wire: i32) -> Result<Option<Suffrage>, Violations> {
    Option::from_wire(wire).map_err(|_: Violations| {
        let what = format!("{wire} is not a suffrage that this version supports; give voter or learner");
        Violation::new("desiredSuffrage", what).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_status_round_trip() {
        for status in [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down] {
            assert_eq!(node_status(status.to_wire()), Ok(status));
        }
        let wrong = node_status(3).unwrap_err().0.remove(0).message;
        assert_eq!(wrong, "value 3 is not known to this version; give UNKNOWN, READY or DOWN");
    }

    #[test]
    fn wire_numbers_match_task_states() {
        for state in TaskState::ALL {
            assert_eq!(state.to_wire(), i32::from(state as u16));
            assert_eq!(task_state(state.to_wire()), Ok(state));
        }
        for expected in DesiredTaskState::ALL {
            assert_eq!(expected.to_wire(), i32::from(expected as u16));
            assert_eq!(desired_task_state(expected.to_wire()), Ok(expected));
        }
    }

    #[test]
    fn unknown_state_number_is_refused() {
        let number = |wire| task_state(wire).unwrap_err().0.remove(0).message;
        assert_eq!(
            number(513),
            "value 513 is not known to this version; give a state that this version supports"
        );
        assert!(task_state(-1).is_err() && task_state(65_536 + 512).is_err());
        let unset = desired_task_state(0).unwrap_err().0.remove(0).message;
        assert_eq!(unset, "is missing; give READY, RUNNING, SHUTDOWN or REMOVE");
        assert!(desired_task_state(1).is_err());
    }
}
