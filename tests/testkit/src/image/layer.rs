//! The files of one layer, and their tar.

use std::collections::BTreeMap;
use std::io;

use tar::{Builder, EntryType, Header};

#[derive(Debug, Clone, PartialEq, Eq)]
enum LayerEntry {
    Directory { mode: u32 },
    File { content: Vec<u8>, mode: u32 },
    Symlink { target: String },
}

/// The files of one layer by path. Missing parent directories get mode 0755.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageLayer {
    entries: BTreeMap<String, LayerEntry>,
}

impl ImageLayer {
    /// A layer without files.
    #[must_use]
    pub fn new() -> ImageLayer {
        ImageLayer::default()
    }

    /// A directory with a mode such as `0o1777`.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> ImageLayer {
        self.with(path, LayerEntry::Directory { mode })
    }

    /// A file with a mode such as `0o755`.
    #[must_use]
    pub fn file(self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> ImageLayer {
        self.with(path, LayerEntry::File { content: content.into(), mode })
    }

    /// A symbolic link; `target` is used unchanged.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> ImageLayer {
        self.with(path, LayerEntry::Symlink { target: target.to_owned() })
    }

    /// Marks `path` of a lower layer as removed (a whiteout file of OCI `layer.md`).
    #[must_use]
    pub fn removed(self, path: &str) -> ImageLayer {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.with(&format!("{parent}/.wh.{name}"), LayerEntry::File { content: Vec::new(), mode: 0o644 })
    }

    fn with(mut self, path: &str, entry: LayerEntry) -> ImageLayer {
        let path = path.trim_matches('/').to_owned();
        assert!(
            path.split('/').all(|part| !matches!(part, "" | "." | "..")),
            "a path in a layer has plain components only, not {path:?}"
        );
        for (end, _) in path.match_indices('/') {
            self.entries.entry(path[..end].to_owned()).or_insert(LayerEntry::Directory { mode: 0o755 });
        }
        self.entries.insert(path, entry);
        self
    }

    /// The uncompressed tar: its digest is the layer's diff id. A sorted map puts parents before children.
    pub(super) fn tar(&self) -> io::Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            match entry {
                LayerEntry::Directory { mode } => {
                    let mut header = header(EntryType::Directory, *mode, 0);
                    builder.append_data(&mut header, format!("{path}/"), io::empty())?;
                }
                LayerEntry::File { content, mode } => {
                    let mut header = header(EntryType::Regular, *mode, content.len());
                    builder.append_data(&mut header, path, content.as_slice())?;
                }
                LayerEntry::Symlink { target } => {
                    builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?;
                }
            }
        }
        builder.into_inner()
    }
}

/// A header without time and owner, so that the digest depends on the content only.
pub(super) fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size as u64);
    header
}
