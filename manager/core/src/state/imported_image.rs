//! Images that users imported from archives. Managers use their digests instead of those of a registry.

use warren_types::{CanonicalImage, ImageDigest};

use super::State;

/// What an import gave a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedImage {
    /// What the name stands for.
    pub digest: ImageDigest,
    /// The index of the entry that recorded it.
    pub index: u64,
}

impl State {
    /// The last import of an image with that name; `None` if there was none, or if too many others came after it.
    pub fn imported_image(&self, image: &CanonicalImage) -> Option<&ImportedImage> {
        self.imported_images.get(image)
    }

    /// All of them, by name.
    pub fn imported_images(&self) -> impl Iterator<Item = (&CanonicalImage, &ImportedImage)> {
        self.imported_images.iter()
    }
}
