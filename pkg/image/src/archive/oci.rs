//! Reads an OCI image layout: `index.json` and `blobs/sha256/*`.
//!
//! Source: OCI image specification, "Image Layout". Names come from two annotations: containerd and buildx
//! write the whole reference into `io.containerd.image.name`; `org.opencontainers.image.ref.name` is a tag
//! or a reference.

use crate::document::{Configuration, Descriptor, Index, Manifest};
use crate::error::Error;
use crate::platform::Host;
use crate::reference::Reference;

use super::candidate::{Candidate, blob};
use super::{Archive, parse};

const FULL_NAME: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const MAX_NESTING: usize = 3;

pub(super) fn candidates(archive: &Archive) -> Result<Vec<Candidate>, Error> {
    const NAME: &str = "index.json";
    let index: Index = parse(NAME, &archive.document(NAME, "the OCI layout")?)?;
    if index.manifests.is_empty() {
        return Err(Error::document(NAME, "it lists no image"));
    }
    // Descriptors of one name are one image in several platforms.
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
        let mut candidate = Candidate::from_layout(archive, manifest)?;
        match (full, short) {
            (Some(name), _) => candidate.names.push(Reference::parse(name)?),
            (None, Some(name)) if name.contains([':', '/']) => candidate.names.push(Reference::parse(name)?),
            (None, tag) => candidate.bare_tag = tag.map(str::to_owned),
        }
        found.push(candidate);
    }
    Ok(found)
}

/// The manifest for this machine among descriptors that are all one image.
fn choose(
    archive: &Archive,
    among: &[&Descriptor],
    listed_in: &str,
    depth: usize,
) -> Result<(Descriptor, Vec<u8>), Error> {
    if depth > MAX_NESTING {
        return Err(Error::document(listed_in, "indexes are nested too deeply"));
    }
    let host = Host::native();
    let mut others = Vec::new();
    for descriptor in among {
        if let Some(platform) = descriptor.platform.as_ref().filter(|each| host.fit(each).is_none()) {
            others.push(platform.to_string());
            continue;
        }
        let name = descriptor.digest.to_string();
        if descriptor.is_index() {
            let index: Index = parse(&name, &blob(archive, descriptor, listed_in)?)?;
            let members: Vec<&Descriptor> = index.manifests.iter().collect();
            return choose(archive, &members, &name, depth + 1);
        }
        if !descriptor.is_manifest() {
            let what = format!("media type {:?} in {listed_in}", descriptor.media_type);
            return Err(Error::Unsupported { what, advice: "want an image manifest or an index of them" });
        }
        let bytes = blob(archive, descriptor, listed_in)?;
        // Without a platform in the descriptor only the image's own configuration tells.
        let manifest: Manifest = parse(&name, &bytes)?;
        let configuration: Configuration =
            parse(&manifest.config.digest.to_string(), &blob(archive, &manifest.config, &name)?)?;
        match configuration.platform() {
            platform if host.fit(&platform).is_some() => return Ok(((*descriptor).clone(), bytes)),
            platform => others.push(platform.to_string()),
        }
    }
    Err(Error::Platform { what: listed_in.to_owned(), found: others.join(", ") })
}
