//! Which images an archive contains, read by the manager while it passes the archive on: a node that received it does
//! not choose their names.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Read};

use bytes::{Buf, Bytes};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use warren_registry::{DOCKER_LIST, DOCKER_MANIFEST, Digest, MAX_DOCUMENT, OCI_INDEX, OCI_MANIFEST};
use warren_types::{CanonicalImage, ImageDigest, ImageReference};

use super::MAX_QUEUED_CHUNKS;

/// Names of one archive that are recorded.
pub(super) const MAX_NAMES: usize = 1024;
/// The most bytes of documents that are kept while the archive is read.
const MAX_DOCUMENTS: u64 = 32 << 20;
/// The most bytes that are unpacked.
const MAX_UNPACKED: u64 = 128 << 30;
const MAX_ENTRIES: usize = 100_000;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const OCI_NAMES: &str = "index.json";
const DOCKER_NAMES: &str = "manifest.json";
const BLOBS: &str = "blobs/sha256/";
const FULL_NAME: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The images of an archive by their names, with the digests that the name may have on a node: one for each platform.
/// `None` if the archive contains no manifests, so that nodes make them.
pub type ArchiveImages = BTreeMap<CanonicalImage, Option<BTreeSet<ImageDigest>>>;

/// Reads an archive while it arrives, in a thread of its own.
pub(super) struct ArchiveReader {
    /// `None`: the rest is not needed.
    chunks: Option<mpsc::Sender<Bytes>>,
    images: JoinHandle<io::Result<ArchiveImages>>,
}

impl ArchiveReader {
    pub fn start() -> Self {
        let (sender, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let reader = ChunkReader { chunks, rest: Bytes::new() };
        let images = tokio::task::spawn_blocking(move || read_images(reader));
        Self { chunks: Some(sender), images }
    }

    /// The next bytes.
    pub async fn push(&mut self, chunk: Bytes) {
        if let Some(chunks) = &self.chunks
            && chunks.send(chunk).await.is_err()
        {
            self.chunks = None;
        }
    }

    /// What the whole archive contains.
    ///
    /// # Errors
    /// It is no archive of images.
    pub async fn finish(self) -> io::Result<ArchiveImages> {
        drop(self.chunks);
        self.images.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

struct ChunkReader {
    chunks: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.rest = chunk,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.rest.len());
        self.rest.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// What an archive contains, packed by gzip or not.
///
/// # Errors
/// It is no archive of images.
pub fn read_images(mut archive: impl Read) -> io::Result<ArchiveImages> {
    let mut magic = Vec::new();
    archive.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic)?;
    let is_packed = magic == GZIP_MAGIC;
    let whole = Read::chain(Cursor::new(magic), archive);
    let documents = match is_packed {
        true => read_documents(MultiGzDecoder::new(whole).take(MAX_UNPACKED))?,
        false => read_documents(whole)?,
    };
    // Newer `docker save` writes both forms into one archive; nodes read the OCI layout then.
    let images = match (documents.get(OCI_NAMES), documents.get(DOCKER_NAMES)) {
        (Some(index), _) => oci_images(index, &documents)?,
        (None, Some(manifest)) => docker_images(manifest)?,
        (None, None) => return Err(io::Error::other("it has no index.json and no manifest.json")),
    };
    match images.len() > MAX_NAMES {
        true => Err(io::Error::other(format!("it has more than {MAX_NAMES} names"))),
        false => Ok(images),
    }
}

/// The documents that say names, and all indexes, by path.
fn read_documents(archive: impl Read) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut documents = BTreeMap::new();
    let mut room = MAX_DOCUMENTS;
    let mut archive = tar::Archive::new(archive);
    // Without extensions: none of these paths is long.
    for (count, entry) in archive.entries()?.raw(true).enumerate() {
        let entry = entry?;
        if count >= MAX_ENTRIES {
            return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} entries")));
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
        let (is_named, is_blob) =
            ([OCI_NAMES, DOCKER_NAMES].contains(&path.as_str()), path.starts_with(BLOBS));
        if !entry.header().entry_type().is_file() || entry.size() > MAX_DOCUMENT || !(is_named || is_blob) {
            continue;
        }
        let mut bytes = Vec::new();
        entry.take(MAX_DOCUMENT).read_to_end(&mut bytes)?;
        if is_blob && !may_be_index(&bytes) {
            continue;
        }
        let left = room.checked_sub(bytes.len() as u64);
        room = left.ok_or_else(|| io::Error::other("its indexes are too large"))?;
        if documents.insert(path.clone(), bytes).is_some() {
            return Err(io::Error::other(format!("{path} occurs twice")));
        }
    }
    Ok(documents)
}

fn may_be_index(bytes: &[u8]) -> bool {
    const KEY: &[u8] = b"\"manifests\"";
    bytes.starts_with(b"{") && bytes.windows(KEY.len()).any(|word| word == KEY)
}

#[derive(Deserialize)]
struct Index {
    manifests: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: Digest,
    annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    /// As nodes read it: the whole reference, or a tag that is one.
    fn name(&self) -> Option<&str> {
        let annotation = |key| self.annotations.as_ref()?.get(key).map(String::as_str);
        let is_whole = |name: &&str| name.contains([':', '/']);
        annotation(FULL_NAME).or_else(|| annotation(REF_NAME).filter(is_whole))
    }
}

/// An image in `manifest.json` of `docker save`.
#[derive(Deserialize)]
struct SavedImage {
    #[serde(rename = "RepoTags")]
    repo_tags: Option<Vec<String>>,
}

fn oci_images(index: &[u8], documents: &BTreeMap<String, Vec<u8>>) -> io::Result<ArchiveImages> {
    let index: Index = serde_json::from_slice(index)?;
    let mut images = ArchiveImages::new();
    for descriptor in index.manifests.unwrap_or_default() {
        let Some(name) = descriptor.name().map(canonical_name).transpose()? else { continue };
        let digests = images.entry(name).or_insert_with(|| Some(BTreeSet::new()));
        digests.get_or_insert_default().extend(manifests_of(descriptor, documents));
    }
    Ok(images)
}

/// The manifests that an index leads to, which may contain further indexes.
fn manifests_of(root: Descriptor, documents: &BTreeMap<String, Vec<u8>>) -> BTreeSet<ImageDigest> {
    let (mut manifests, mut seen, mut next) = (BTreeSet::new(), BTreeSet::new(), vec![root]);
    while let Some(Descriptor { media_type, digest, .. }) = next.pop() {
        if !seen.insert(digest.clone()) {
            continue;
        }
        match media_type.as_str() {
            OCI_MANIFEST | DOCKER_MANIFEST => drop(manifests.insert(ImageDigest::from(&digest))),
            OCI_INDEX | DOCKER_LIST => {
                let bytes = documents.get(&format!("{BLOBS}{}", digest.hex()));
                let bytes = bytes.filter(|bytes| Digest::of(bytes) == digest);
                let index = bytes.and_then(|bytes| serde_json::from_slice::<Index>(bytes).ok());
                next.extend(index.and_then(|index| index.manifests).unwrap_or_default());
            }
            _ => {}
        }
    }
    manifests
}

fn docker_images(manifest: &[u8]) -> io::Result<ArchiveImages> {
    let saved: Vec<SavedImage> = serde_json::from_slice(manifest)?;
    let names = saved.into_iter().flat_map(|image| image.repo_tags.unwrap_or_default());
    names.map(|name| Ok((canonical_name(&name)?, None))).collect()
}

fn canonical_name(name: &str) -> io::Result<CanonicalImage> {
    let image: Result<ImageReference, _> = name.parse();
    image.map(|image| CanonicalImage::of(&image)).map_err(|why| io::Error::other(format!("{name:?}: {why}")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use serde_json::json;

    use super::*;

    fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, bytes) in files {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, path, &bytes[..]).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn shown(archive: &[u8]) -> Result<Vec<String>, String> {
        let images = read_images(archive).map_err(|error| error.to_string())?;
        let show = |(image, digests): (CanonicalImage, Option<BTreeSet<ImageDigest>>)| {
            let digests =
                digests.map(|digests| digests.iter().map(|it| it.as_str()[7..9].to_owned()).collect());
            let digests: Vec<String> = digests.unwrap_or_else(|| vec!["made by nodes".to_owned()]);
            format!("{image} {}", digests.join(" "))
        };
        Ok(images.into_iter().map(show).collect())
    }

    #[test]
    fn names_and_digests_are_read_from_an_oci_layout() {
        let manifest = |digit| json!({"mediaType": OCI_MANIFEST, "digest": digest(digit), "size": 7});
        let nested = json!({"schemaVersion": 2, "manifests": [manifest('b'), manifest('c')]}).to_string();
        let nested = nested.into_bytes();
        let mut listed = json!({"mediaType": OCI_INDEX, "digest": Digest::of(&nested).as_str(), "size": 7});
        listed["annotations"] = json!({FULL_NAME: "docker.io/library/web:1", REF_NAME: "1"});
        let mut other = manifest('a');
        other["annotations"] = json!({REF_NAME: "registry.lan:5000/other:2"});
        let mut bare = manifest('d');
        bare["annotations"] = json!({REF_NAME: "latest"});
        let index = json!({"manifests": [listed, other, bare]}).to_string().into_bytes();
        let blob = format!("{BLOBS}{}", Digest::of(&nested).hex());
        let files =
            [("layer", vec![7; 5000]), (blob.as_str(), nested.clone()), ("./index.json", index.clone())];
        let expected = ["docker.io/library/web:1 bb cc", "registry.lan:5000/other:2 aa"];
        let plain = archive(&files);
        assert_eq!(shown(&plain).unwrap(), expected);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&plain).unwrap();
        assert_eq!(shown(&packed.finish().unwrap()).unwrap(), expected);
        // An index with other content than its digest says leads nowhere.
        let forged = String::from_utf8(nested).unwrap().replace('b', "e").into_bytes();
        let forged = archive(&[(blob.as_str(), forged), (OCI_NAMES, index)]);
        assert_eq!(shown(&forged).unwrap()[0], "docker.io/library/web:1 ");
    }

    #[test]
    fn names_are_read_from_output_of_docker_save() {
        let manifest =
            json!([{"Config": "c.json", "RepoTags": ["web:1", "web:2"], "Layers": []}, {"RepoTags": null}]);
        let saved = archive(&[(DOCKER_NAMES, manifest.to_string().into_bytes())]);
        let expected = ["docker.io/library/web:1 made by nodes", "docker.io/library/web:2 made by nodes"];
        assert_eq!(shown(&saved).unwrap(), expected);
    }

    #[test]
    fn what_is_no_archive_of_images_is_refused() {
        for (archive, reason) in [
            (archive(&[("motd", b"hello".to_vec())]), "no index.json"),
            (archive(&[(OCI_NAMES, b"{".to_vec())]), "EOF"),
            (archive(&[(OCI_NAMES, b"{}".to_vec()), (OCI_NAMES, b"{}".to_vec())]), "twice"),
            (archive(&[(DOCKER_NAMES, br#"[{"RepoTags":["Not/A:Name!"]}]"#.to_vec())]), "Not/A"),
            (vec![1; 2000], ""),
            (Vec::new(), "no index.json"),
        ] {
            let refused = shown(&archive).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[tokio::test]
    async fn archive_is_read_while_it_arrives() {
        let manifest = json!([{"RepoTags": ["web:1"]}]).to_string().into_bytes();
        let bytes = archive(&[(DOCKER_NAMES, manifest)]);
        let mut reader = ArchiveReader::start();
        for part in bytes.chunks(100) {
            reader.push(Bytes::copy_from_slice(part)).await;
        }
        assert_eq!(reader.finish().await.unwrap().len(), 1);
        let mut broken = ArchiveReader::start();
        for _ in 0..100 {
            broken.push(Bytes::from_static(&[1; 512])).await;
        }
        broken.finish().await.unwrap_err();
    }
}
