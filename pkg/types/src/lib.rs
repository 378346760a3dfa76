//! The domain types of Warren: identifiers, names, quantities, specs, and the objects that a cluster stores.
//!
//! Pure data: no IO, no clock, no randomness, and nothing of the wire (that is `warren-proto`). A value of
//! these types is valid by construction or has a list of [`Violation`]s. Start reading at [`spec`] (what a
//! user sets) and [`object`] (what the cluster stores).

#![cfg_attr(any(test, feature = "strategies"), allow(clippy::unwrap_used))]

pub mod admission_policy;
pub mod assignment;
pub mod autolock;
pub mod base64;
pub mod boxed_default;
pub mod ca;
mod canonical_image;
pub mod catalogue;
pub mod cluster_settings;
pub mod data_plane;
#[cfg(feature = "strategies")]
pub mod fixtures;
pub mod id;
mod id_range;
pub mod image_reference;
pub mod key_rotation;
pub mod member;
pub mod name;
pub mod network;
pub mod network_view;
pub mod object;
pub mod public_key;
pub mod quantity;
pub mod raft;
mod seccomp_profile;
pub mod secret_object;
pub mod signal;
mod signature_key;
pub mod spec;
pub mod state;
#[cfg(any(test, feature = "strategies"))]
pub mod strategies;
pub mod template;
mod text;
pub mod time;
pub mod token;
pub mod user;
pub mod verification;
pub mod violation;
pub mod volume;

pub use admission_policy::{AdmissionPolicy, AdmissionRules, SignatureRule};
pub use assignment::{
    Assignment, AssignmentVersion, LOG_RETENTION, MAX_REPORTED_IMAGES, MAX_REPORTED_VOLUMES, NodeSettings,
    RetainedLog, TaskAssignment, TaskReport, VolumeAssignment,
};
pub use autolock::{ParseUnlockKeyIdError, SealedUnlockKey, UnlockKeyId};
pub use boxed_default::BoxedDefault;
pub use ca::{CaDigest, CaHolder, CaPhase, CaRotation, MAX_PREDECESSORS, ParseDigestError};
pub use canonical_image::CanonicalImage;
pub use catalogue::{Catalogue, CatalogueService, Endpoint, PortName, ServicePort};
pub use cluster_settings::{
    ClusterSettings, ClusterSettingsChange, DEFAULT_NODE_CERTIFICATE_LIFETIME, MAX_NODE_CERTIFICATE_LIFETIME,
};
pub use data_plane::{DataPlane, WireGuardKey};
pub use id::{
    ClusterId, Id, ManagerId, NodeId, SecretObjectId, ServiceId, TaskId, TokenId, UserId, VolumeId,
};
pub use id_range::{ID_RANGE_SIZE, IdRange};
pub use key_rotation::{KeyPhase, KeyRotation, NextSecretObjectKey, SealedItem};
pub use member::{ManagerAddress, Member, MemberId, ParseManagerAddressError, Suffrage};
pub use name::{ImageDigest, ImageReference, NodeName, SecretObjectName, ServiceName, UserName, VolumeName};
pub use network::{
    DnsLabel, EndpointMode, INGRESS_NETWORK, INGRESS_NETWORK_NAME, INGRESS_NETWORK_NUMBER, Network,
    NetworkId, NetworkName,
};
pub use network_view::{
    CatalogueChange, CatalogueServiceChange, NetworkPeer, NetworkUpdate, NetworkUpdateError, NetworkView,
    PeersChange,
};
pub use object::{
    Availability, FailureOutcome, Node, NodeCondition, NodeDescription, NodeRole, NodeStatus, PauseCause,
    RareTaskFields, Revision, RolloutFailure, RolloutKind, RolloutRecord, Service, Task, TaskStatus,
    TaskStatusDetails, validate_engine_labels,
};
pub use public_key::PublicKeyHash;
pub use quantity::{Bytes, MilliCpu, Resources};
pub use seccomp_profile::{
    SeccompAction, SeccompArchitecture, SeccompArchitectures, SeccompArgument, SeccompCondition,
    SeccompOperator, SeccompProfile, SeccompRule,
};
pub use secret_object::{
    Login, NAMED_KEY_FORMAT, SealedData, SecretObject, SecretObjectKeyId, SecretObjectKind,
    SecretObjectVersion,
};
pub use signal::Signal;
pub use signature_key::{ParseSignatureKeyError, SignatureKey};
pub use spec::{
    AppArmor, Capability, Constraint, Device, DeviceAccess, DnsSettings, EnvVar, FailureAction, FailureRatio,
    HealthCheck, HostEntry, HttpHeader, ImageResolver, LifecycleHook, Limits, LogLimits, Mount, MountSource,
    NetworkAttachment, NoNewPrivileges, NodeLabel, OnDisconnect, Parallelism, Placement, PlacementPreference,
    Probe, Propagation, Protocol, PublishMode, PublishedPort, PullPolicy, RestartCondition, RestartPolicy,
    Seccomp, SecretObjectMount, ServiceMode, ServiceSpec, Taint, TaintEffect, TaintSelector, TaskNetworkMode,
    TaskSpec, UNVERIFIED_TAINT, Ulimit, UlimitName, UpdateOrder, UpdatePolicy, UserNamespace,
};
pub use state::{DesiredTaskState, Health, TaskExit, TaskState};
pub use template::{Template, TemplateValues};
pub use time::Timestamp;
pub use token::{Token, TokenHash, validate_token_labels};
pub use user::{
    ADMINISTRATOR, LoginToken, MAX_USER_CERTIFICATE_LIFETIME, MAX_USER_KEYS, RevokedKey, User, UserRole,
};
pub use verification::{
    BuiltInCheck, CheckProgram, NodeCheck, NodeCheckOutcome, NodeCheckResult, NodeVerification,
    VERIFIED_LABEL, VerificationChange, VerificationSettings, VerificationState, unverified_taint,
};
pub use violation::{Violation, Violations};
pub use volume::{ReleasedVolume, Volume, VolumeDriver};
