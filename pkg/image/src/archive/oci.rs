//! Reads an OCI image layout: `index.json` and `blobs/sha256/*`.
//!
//! Source: OCI image specification, "Image Layout". Names come from two annotations: containerd and buildx
//! write the whole reference into `io.containerd.image.name`; `org.opencontainers.image.ref.name` is a tag
//! or a reference.

use warren_registry::Reference;

use crate::document::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use crate::error::Error;
use crate::platform::HostPlatform;

use super::candidate::{ImageCandidate, read_blob};
use super::{IndexedArchive, parse};

const FULL_NAME: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const MAX_NESTING: usize = 3;

pub(super) fn candidates(archive: &IndexedArchive) -> Result<Vec<ImageCandidate>, Error> {
    const NAME: &str = "index.json";
    let index: ImageIndex = parse(NAME, &archive.document(NAME, "the OCI layout")?)?;
    if index.manifests.is_empty() {
        return Err(Error::document(NAME, "it contains no image"));
    }
    // Descriptors of one name are platforms of one image.
    let mut groups: Vec<(Option<&str>, Option<&str>, Vec<&Descriptor>)> = Vec::new();
    for descriptor in &index.manifests {
        let annotation = |key| descriptor.annotations.get(key).map(String::as_str);
        let (full, short) = (annotation(FULL_NAME), annotation(REF_NAME));
        match groups.iter_mut().find(|(f, s, _)| (*f, *s) == (full, short)) {
            Some((_, _, members)) => members.push(descriptor),
            None => groups.push((full, short, vec![descriptor])),
        }
    }
    let mut found = Vec::with_capacity(groups.len());
    for (full, short, members) in groups {
        let manifest = choose(archive, &members, NAME, 0)?;
        let mut candidate = ImageCandidate::from_layout(archive, manifest)?;
        match (full, short) {
            (Some(name), _) => candidate.names.push(Reference::parse(name)?),
            (None, Some(name)) if name.contains([':', '/']) => candidate.names.push(Reference::parse(name)?),
            (None, tag) => candidate.bare_tag = tag.map(str::to_owned),
        }
        found.push(candidate);
    }
    Ok(found)
}

/// The manifest for this machine among descriptors of one image.
fn choose(
    archive: &IndexedArchive,
    among: &[&Descriptor],
    listed_in: &str,
    depth: usize,
) -> Result<(Descriptor, Vec<u8>), Error> {
    if depth > MAX_NESTING {
        return Err(Error::document(listed_in, "indexes are nested too deeply"));
    }
    let host = HostPlatform::native();
    let mut others = Vec::new();
    for descriptor in among {
        if let Some(platform) = descriptor.platform.as_ref().filter(|each| host.rank(each).is_none()) {
            others.push(platform.to_string());
            continue;
        }
        let name = descriptor.digest.to_string();
        if descriptor.is_index() {
            let index: ImageIndex = parse(&name, &read_blob(archive, descriptor, listed_in)?)?;
            let members: Vec<&Descriptor> = index.manifests.iter().collect();
            return choose(archive, &members, &name, depth + 1);
        }
        if !descriptor.is_manifest() {
            let what = format!("media type {:?} in {listed_in}", descriptor.media_type);
            return Err(Error::Unsupported { what, advice: "use an image manifest or an index" });
        }
        let bytes = read_blob(archive, descriptor, listed_in)?;
        // Without a platform in the descriptor, the image configuration decides.
        let manifest: ImageManifest = parse(&name, &bytes)?;
        let configuration: ImageConfiguration =
            parse(&manifest.config.digest.to_string(), &read_blob(archive, &manifest.config, &name)?)?;
        match configuration.platform() {
            platform if host.rank(&platform).is_some() => return Ok(((*descriptor).clone(), bytes)),
            platform => others.push(platform.to_string()),
        }
    }
    Err(Error::NoMatchingPlatform { what: listed_in.to_owned(), found: others.join(", ") })
}
