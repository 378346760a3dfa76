//! Arbitrary bytes as an archive whose names a manager reads.

use warren_api::images::read_images;
use warren_types::{CanonicalImage, ImageReference};

/// The most names of one archive.
const MAX_NAMES: usize = 1024;

/// The names are bounded and canonical.
pub fn run(bytes: &[u8]) {
    accepted(bytes);
}

/// The form of the archive, for the test of the corpus; `None` if it names no image.
pub fn accepted(bytes: &[u8]) -> Option<&'static str> {
    let images = read_images(bytes).ok()?;
    assert!(images.len() <= MAX_NAMES, "{} names", images.len());
    for image in images.keys() {
        // With registry and tag it may be too long for a reference.
        if let Ok(reference) = image.to_string().parse::<ImageReference>() {
            assert_eq!(CanonicalImage::of(&reference), *image);
        }
    }
    images.values().next().map(|digests| if digests.is_some() { "layout" } else { "saved images" })
}
