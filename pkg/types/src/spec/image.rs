//! How the image of a task is resolved and pulled.

use serde::{Deserialize, Serialize};

/// The reason of a task whose node has its image, until its revision has an image pin.
pub const AWAITS_IMAGE_PIN: &str = "waiting for the manager to pin the image digest";
/// How the reason of such a task begins if managers cannot resolve the image.
pub const IMAGE_NOT_RESOLVED: &str = "managers cannot resolve image";
/// How it begins if the image lacks a signature that the admission policy demands.
pub const IMAGE_NOT_ADMITTED: &str = "managers do not admit image";

/// When an image is pulled from its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PullPolicy {
    /// If the node does not have it.
    #[default]
    Missing,
    /// For every new revision, so that it gets the current image of a tag.
    Always,
    /// Never: if the node does not have it, the task is rejected there.
    Never,
}

impl PullPolicy {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Missing, Self::Always, Self::Never];

    /// As in files and flags: `missing`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

impl std::str::FromStr for PullPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a pull policy; give missing, always or never"))
    }
}

/// Who decides which digest the tag of an image stands for, for all tasks of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageResolver {
    /// The managers: they ask the registry, or use the digest of an imported archive.
    #[default]
    Manager,
    /// The first node that has or pulls the image.
    Worker,
}

impl ImageResolver {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Manager, Self::Worker];

    /// As in files and flags: `manager`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Worker => "worker",
        }
    }
}

impl std::str::FromStr for ImageResolver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|value| value.as_str() == text);
        known.ok_or_else(|| format!("{text:?} does not resolve images; give manager or worker"))
    }
}
