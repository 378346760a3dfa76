//! The forms of values in messages, and messages whose fields correspond one to one to those of a struct.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use prost::bytes;
use warren_types::spec::{Capability, Constraint, DeviceAccess, PlacementPreference, UlimitName};
use warren_types::{
    AssignmentVersion, Bytes, CaDigest, ClusterId, DnsLabel, ImageDigest, ImageReference, Limits, LogLimits,
    ManagerAddress, ManagerId, MemberId, MilliCpu, NetworkId, NetworkName, NodeCheck, NodeId, NodeLabel,
    NodeName, PublicKeyHash, Resources, SecretObjectId, SecretObjectKeyId, SecretObjectName, ServiceId,
    ServiceName, Signal, SignatureKey, Taint, TaintSelector, TaskExit, TaskId, Timestamp, TokenHash, TokenId,
    UnlockKeyId, UserId, UserName, Violation, Violations, VolumeDriver, VolumeId, VolumeName, WireGuardKey,
};

use super::fields::{FieldReader, millis, optional_text};
use crate::v1;

/// A value with a form `W` in a message.
pub trait WireForm<W>: Sized {
    /// Encodes the value.
    fn to_wire(&self) -> W;

    /// Decodes the value.
    ///
    /// # Errors
    /// All violations; their paths are relative to the value.
    fn from_wire(wire: W) -> Result<Self, Violations>;
}

/// Decodes the field `path`.
///
/// # Errors
/// All violations of the field.
pub fn read_field<T: WireForm<W>, W>(path: &str, wire: W) -> Result<T, Violations> {
    let mut fields = FieldReader::default();
    let read = field(&mut fields, path, T::from_wire(wire));
    fields.finish(read)
}

/// The result of the field `name`, whose path is in camel case.
pub(super) fn field<T>(fields: &mut FieldReader, name: &str, read: Result<T, Violations>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(inner) => fields.nest(&camel_case(name), Err(inner)),
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &word[..1].to_uppercase() + &word[1..])
}

/// Structs and messages with the same fields: `message field`, or `message field: struct field`. A field with
/// `by module` is converted by the functions of that module; one with `with other by module` is two fields of the
/// message, of which `other_to_wire` of that module makes the other one. Fields after `beside` are in the message only.
macro_rules! wire_structs {
    (@encode $value:ident) => { $value.to_wire() };
    (@encode $value:ident $module:ident) => { $module::to_wire($value) };
    (@encode $value:ident with $pair:ident) => { $pair::to_wire($value) };
    (@decode $wire:ident) => { WireForm::from_wire($wire) };
    (@decode $wire:ident $module:ident) => { $module::from_wire($wire) };
    (@decode $wire:ident with $other:ident $pair:ident) => { $pair::from_wire($wire, $other) };
    ($($type:ident as $message:ident {
        $($wire:ident $(: $field:ident)? $(by $module:ident)? $(with $other:ident by $pair:ident)?),*
    } $(beside $($beside:ident),*)?;)*) => {$(
        impl WireForm<v1::$message> for $type {
            fn to_wire(&self) -> v1::$message {
                let Self { $($($field:)? $wire),* } = self;
                v1::$message {
                    $($wire: wire_structs!(@encode $wire $($module)? $(with $pair)?),)*
                    $($($other: $pair::other_to_wire($wire),)?)*
                    $($($beside: Default::default()),*)?
                }
            }

            fn from_wire(wire: v1::$message) -> Result<Self, Violations> {
                let v1::$message { $($wire,)* $($($other,)?)* $($($beside: _),*)? } = wire;
                let mut fields = FieldReader::default();
                $(
                    let $wire = field(
                        &mut fields,
                        stringify!($wire),
                        wire_structs!(@decode $wire $($module)? $(with $other $pair)?),
                    );
                )*
                let built = || {
                    $(let $wire = $wire?;)*
                    Some(Self { $($($field:)? $wire),* })
                };
                fields.finish(built())
            }
        }
    )*};
}
pub(super) use wire_structs;

/// `From` and `TryFrom` for structs with a [`WireForm`] of their own.
macro_rules! convert_by_wire_form {
    ($($type:ident)*) => {$(
        impl From<&$type> for v1::$type {
            fn from(value: &$type) -> Self {
                value.to_wire()
            }
        }

        impl TryFrom<v1::$type> for $type {
            type Error = Violations;

            fn try_from(wire: v1::$type) -> Result<Self, Violations> {
                Self::from_wire(wire)
            }
        }
    )*};
}
pub(super) use convert_by_wire_form;

/// The [`WireForm`] of structs with conversions of their own.
macro_rules! wire_form_by_convert {
    ($($type:ident: $read:expr;)*) => {$(
        impl WireForm<v1::$type> for $type {
            fn to_wire(&self) -> v1::$type {
                self.into()
            }

            fn from_wire(wire: v1::$type) -> Result<Self, Violations> {
                $read(wire)
            }
        }
    )*};
}
pub(super) use wire_form_by_convert;

/// Messages that must be present where they are fields.
macro_rules! required_messages {
    ($($type:ident as $message:ident)*) => {$(
        impl WireForm<Option<v1::$message>> for $type {
            fn to_wire(&self) -> Option<v1::$message> {
                Some(self.to_wire())
            }

            fn from_wire(wire: Option<v1::$message>) -> Result<Self, Violations> {
                wire.map_or_else(|| Err(Violation::new("", "is missing").into()), Self::from_wire)
            }
        }
    )*};
}
pub(super) use required_messages;

macro_rules! unchanged {
    ($($type:ty)*) => {$(
        impl WireForm<$type> for $type {
            fn to_wire(&self) -> $type {
                Self::clone(self)
            }

            fn from_wire(wire: $type) -> Result<Self, Violations> {
                Ok(wire)
            }
        }
    )*};
}

unchanged! { bool i32 u32 u64 String BTreeMap<String, String> }

/// Texts in their canonical form.
macro_rules! texts {
    ($($type:ty)*) => {$(
        impl WireForm<String> for $type {
            fn to_wire(&self) -> String {
                self.to_string()
            }

            fn from_wire(wire: String) -> Result<Self, Violations> {
                wire.parse().map_err(|why| Violation::new("", why).into())
            }
        }
    )*};
}

texts! {
    CaDigest Capability ClusterId Constraint DeviceAccess DnsLabel ImageDigest ImageReference Ipv4Addr Ipv4Net
    ManagerAddress ManagerId NetworkId NetworkName NodeCheck NodeId NodeLabel NodeName PlacementPreference
    SecretObjectId SecretObjectName ServiceId ServiceName Signal SignatureKey Taint TaintSelector TaskId TokenId
    UlimitName UserId UserName VolumeId VolumeName WireGuardKey
}

/// Texts that are empty for `None`.
macro_rules! optional_texts {
    ($($type:ty)*) => {$(
        impl WireForm<String> for Option<$type> {
            fn to_wire(&self) -> String {
                optional_text(self.as_ref())
            }

            fn from_wire(wire: String) -> Result<Self, Violations> {
                (!wire.is_empty()).then(|| <$type>::from_wire(wire)).transpose()
            }
        }
    )*};
}

optional_texts! { CaDigest ImageDigest Ipv4Addr ManagerAddress NodeId NodeLabel Signal String WireGuardKey }

/// Numbers with a unit, or that name something.
macro_rules! numbers {
    ($($type:ident)*) => {$(
        impl WireForm<u64> for $type {
            fn to_wire(&self) -> u64 {
                self.0
            }

            fn from_wire(wire: u64) -> Result<Self, Violations> {
                Ok(Self(wire))
            }
        }
    )*};
}

numbers! { Bytes MilliCpu SecretObjectKeyId Timestamp UnlockKeyId }

impl WireForm<u64> for Duration {
    fn to_wire(&self) -> u64 {
        millis(*self)
    }

    fn from_wire(wire: u64) -> Result<Self, Violations> {
        Ok(Self::from_millis(wire))
    }
}

/// No member is 0.
impl WireForm<u64> for Option<MemberId> {
    fn to_wire(&self) -> u64 {
        self.unwrap_or(0)
    }

    fn from_wire(wire: u64) -> Result<Self, Violations> {
        Ok((wire > 0).then_some(wire))
    }
}

/// A port.
impl WireForm<u32> for u16 {
    fn to_wire(&self) -> u32 {
        u32::from(*self)
    }

    fn from_wire(wire: u32) -> Result<Self, Violations> {
        let number = Self::try_from(wire).ok().filter(|port| *port != 0);
        let invalid = || Violation::new("", format!("{wire} is not a port; give one of 1 to 65535")).into();
        number.ok_or_else(invalid)
    }
}

impl WireForm<String> for VolumeDriver {
    fn to_wire(&self) -> String {
        self.as_str().to_owned()
    }

    fn from_wire(wire: String) -> Result<Self, Violations> {
        wire.parse().map_err(|why| Violation::new("", why).into())
    }
}

impl WireForm<String> for Arc<str> {
    fn to_wire(&self) -> String {
        self.as_ref().to_owned()
    }

    fn from_wire(wire: String) -> Result<Self, Violations> {
        Ok(wire.into())
    }
}

impl WireForm<bytes::Bytes> for [u8; 32] {
    fn to_wire(&self) -> bytes::Bytes {
        bytes::Bytes::copy_from_slice(self)
    }

    fn from_wire(wire: bytes::Bytes) -> Result<Self, Violations> {
        Self::try_from(&wire[..]).map_err(|_| Violation::new("", "is not of 32 bytes").into())
    }
}

impl WireForm<bytes::Bytes> for TokenHash {
    fn to_wire(&self) -> bytes::Bytes {
        self.0.to_wire()
    }

    fn from_wire(wire: bytes::Bytes) -> Result<Self, Violations> {
        WireForm::from_wire(wire).map(Self)
    }
}

impl WireForm<bytes::Bytes> for CaDigest {
    fn to_wire(&self) -> bytes::Bytes {
        self.as_bytes().to_wire()
    }

    fn from_wire(wire: bytes::Bytes) -> Result<Self, Violations> {
        WireForm::from_wire(wire).map(Self::from_bytes)
    }
}

impl WireForm<bytes::Bytes> for PublicKeyHash {
    fn to_wire(&self) -> bytes::Bytes {
        self.0.to_wire()
    }

    fn from_wire(wire: bytes::Bytes) -> Result<Self, Violations> {
        WireForm::from_wire(wire).map(Self)
    }
}

impl<T: WireForm<W>, W> WireForm<Option<W>> for Option<T> {
    fn to_wire(&self) -> Option<W> {
        self.as_ref().map(T::to_wire)
    }

    fn from_wire(wire: Option<W>) -> Result<Self, Violations> {
        wire.map(T::from_wire).transpose()
    }
}

impl<T: WireForm<W>, W> WireForm<W> for Arc<T> {
    fn to_wire(&self) -> W {
        T::to_wire(self)
    }

    fn from_wire(wire: W) -> Result<Self, Violations> {
        T::from_wire(wire).map(Self::new)
    }
}

impl<T: WireForm<W>, W> WireForm<Vec<W>> for Vec<T> {
    fn to_wire(&self) -> Vec<W> {
        self.iter().map(T::to_wire).collect()
    }

    fn from_wire(wire: Vec<W>) -> Result<Self, Violations> {
        let (mut values, mut violations) = (Self::with_capacity(wire.len()), Violations::default());
        for (index, wire) in wire.into_iter().enumerate() {
            match T::from_wire(wire) {
                Ok(value) => values.push(value),
                Err(inner) => violations.nest(&format!("[{index}]"), inner),
            }
        }
        violations.into_result(values)
    }
}

impl<T: WireForm<W> + Ord, W> WireForm<Vec<W>> for BTreeSet<T> {
    fn to_wire(&self) -> Vec<W> {
        self.iter().map(T::to_wire).collect()
    }

    fn from_wire(wire: Vec<W>) -> Result<Self, Violations> {
        Ok(<Vec<T>>::from_wire(wire)?.into_iter().collect())
    }
}

impl<T: WireForm<W>, W> WireForm<BTreeMap<u64, W>> for BTreeMap<u64, T> {
    fn to_wire(&self) -> BTreeMap<u64, W> {
        self.iter().map(|(number, value)| (*number, value.to_wire())).collect()
    }

    fn from_wire(wire: BTreeMap<u64, W>) -> Result<Self, Violations> {
        wire.into_iter().map(|(number, wire)| Ok((number, T::from_wire(wire)?))).collect()
    }
}

impl WireForm<v1::TaskPlacement> for (TaskId, NodeId) {
    fn to_wire(&self) -> v1::TaskPlacement {
        v1::TaskPlacement { task_id: self.0.to_wire(), node_id: self.1.to_wire() }
    }

    fn from_wire(wire: v1::TaskPlacement) -> Result<Self, Violations> {
        Ok((read_field("task_id", wire.task_id)?, read_field("node_id", wire.node_id)?))
    }
}

/// Numbers of 16 bits that may be 0: an automatic port, or the number of a node of a version without numbers.
pub(super) mod number_or_zero {
    use super::{Violation, Violations};

    pub fn to_wire(number: &u16) -> u32 {
        (*number).into()
    }

    pub fn from_wire(wire: u32) -> Result<u16, Violations> {
        let invalid =
            |_| Violation::new("", format!("{wire} is out of range; give one of 1 to 65535")).into();
        wire.try_into().map_err(invalid)
    }
}

/// The keys of a user, by key.
pub(super) mod user_keys {
    use std::collections::BTreeMap;

    use warren_types::{PublicKeyHash, Timestamp, Violations};

    use super::{WireForm, read_field};
    use crate::v1;

    pub fn to_wire(keys: &BTreeMap<PublicKeyHash, Timestamp>) -> Vec<v1::StoredUserKey> {
        keys.iter()
            .map(|(hash, added)| v1::StoredUserKey { hash: hash.to_wire(), added_at: added.0 })
            .collect()
    }

    pub fn from_wire(wire: Vec<v1::StoredUserKey>) -> Result<BTreeMap<PublicKeyHash, Timestamp>, Violations> {
        let key =
            |stored: v1::StoredUserKey| Ok((read_field("hash", stored.hash)?, Timestamp(stored.added_at)));
        wire.into_iter().map(key).collect()
    }
}

/// Messages that are left out for a default.
pub mod or_default {
    use super::{Violations, WireForm};

    /// `None` for the default.
    pub fn to_wire<T: WireForm<W> + Default + PartialEq, W>(value: &T) -> Option<W> {
        (*value != T::default()).then(|| value.to_wire())
    }

    /// The default for `None`.
    ///
    /// # Errors
    /// All violations of the message.
    pub fn from_wire<T: WireForm<W> + Default, W>(wire: Option<W>) -> Result<T, Violations> {
        wire.map_or_else(|| Ok(T::default()), T::from_wire)
    }
}

/// Structs whose conversions cannot fail.
macro_rules! infallible {
    ($($type:ident)*) => {$(
        impl WireForm<v1::$type> for $type {
            fn to_wire(&self) -> v1::$type {
                (*self).into()
            }

            fn from_wire(wire: v1::$type) -> Result<Self, Violations> {
                Ok(wire.into())
            }
        }
    )*};
}

infallible! { AssignmentVersion Limits LogLimits Resources TaskExit }
required_messages! { AssignmentVersion as AssignmentVersion Resources as Resources }
