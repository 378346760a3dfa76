//! Docker's long form of mounts: `type=volume,source=data,target=/data`.

use warren_types::{Bytes, Mount, MountSource, Propagation};

use super::split::{permissions, set_once, split_commas};

/// The kind of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountType {
    Volume,
    Bind,
    Tmpfs,
}

/// The options of a mount, as given.
#[derive(Default)]
struct MountOptions {
    kind: Option<MountType>,
    source: Option<String>,
    target: Option<String>,
    read_only: Option<bool>,
    subpath: Option<String>,
    no_copy: Option<bool>,
    propagation: Option<Propagation>,
    nonrecursive: Option<bool>,
    size: Option<Bytes>,
    mode: Option<u32>,
}

/// `type=volume|bind|tmpfs,source=SOURCE,target=TARGET[,readonly]` with the options of each type. A comma in a value
/// is escaped as `\\,`.
pub fn mount(text: &str) -> Result<Mount, String> {
    let mut given = MountOptions::default();
    for option in split_commas(text) {
        given.read(&option)?;
    }
    given.build()
}

impl MountOptions {
    fn read(&mut self, option: &str) -> Result<(), String> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "type" => set_once(option, &mut self.kind, parse_type(value)?),
            "source" | "src" => set_once(option, &mut self.source, value.to_owned()),
            "target" | "dst" | "destination" => set_once(option, &mut self.target, value.to_owned()),
            "readonly" | "ro" => set_once(option, &mut self.read_only, parse_switch(option, value)?),
            "volume-subpath" => set_once(option, &mut self.subpath, value.to_owned()),
            "volume-nocopy" => set_once(option, &mut self.no_copy, parse_switch(option, value)?),
            "bind-propagation" => {
                let unknown = |_| format!("{value:?} is not a propagation; give rprivate, rslave or rshared");
                set_once(option, &mut self.propagation, value.parse().map_err(unknown)?)
            }
            "bind-nonrecursive" => set_once(option, &mut self.nonrecursive, parse_switch(option, value)?),
            "tmpfs-size" => {
                let size = value.parse().map_err(|why| format!("tmpfs-size: {why}"))?;
                set_once(option, &mut self.size, size)
            }
            "tmpfs-mode" => set_once(option, &mut self.mode, permissions(value)?),
            "volume-driver" | "volume-opt" | "volume-label" => Err(format!(
                "{key} belongs to the volume: create it with `warren volume create`, then mount it by its name"
            )),
            _ => {
                let known = "type, source, target, readonly, volume-subpath, volume-nocopy, bind-propagation, \
                             bind-nonrecursive, tmpfs-size and tmpfs-mode";
                Err(format!("{option:?} is not known; there are {known}"))
            }
        }
    }

    fn build(self) -> Result<Mount, String> {
        let Self { kind, source, target, read_only, subpath, no_copy, propagation, nonrecursive, size, mode } =
            self;
        let kind = kind.unwrap_or(MountType::Volume);
        let foreign = [
            ("volume-subpath", MountType::Volume, subpath.is_some()),
            ("volume-nocopy", MountType::Volume, no_copy.is_some()),
            ("bind-propagation", MountType::Bind, propagation.is_some()),
            ("bind-nonrecursive", MountType::Bind, nonrecursive.is_some()),
            ("tmpfs-size", MountType::Tmpfs, size.is_some()),
            ("tmpfs-mode", MountType::Tmpfs, mode.is_some()),
        ];
        if let Some((option, ..)) = foreign.iter().find(|(_, of, given)| *given && *of != kind) {
            return Err(format!("{option} does not fit the type of the mount"));
        }
        let target = target.filter(|target| !target.is_empty());
        let target = target.ok_or("target is missing; give the path in the container as target=PATH")?;
        let source = source.filter(|source| !source.is_empty());
        let source = match (kind, source) {
            (MountType::Volume, Some(name)) => {
                MountSource::Volume { name, subpath, no_copy: no_copy.unwrap_or_default() }
            }
            (MountType::Volume, None) => {
                return Err("source is missing; every volume has a name here: give source=NAME".to_owned());
            }
            (MountType::Bind, Some(path)) => {
                let recursive = !nonrecursive.unwrap_or_default();
                MountSource::Bind { path, propagation: propagation.unwrap_or_default(), recursive }
            }
            (MountType::Bind, None) => {
                return Err("source is missing; give the path on the node as source=PATH".to_owned());
            }
            (MountType::Tmpfs, None) => MountSource::Tmpfs { size, mode, exec: false },
            (MountType::Tmpfs, Some(_)) => return Err("a tmpfs has no source; leave it out".to_owned()),
        };
        Ok(Mount { target, source, read_only: read_only.unwrap_or_default() })
    }
}

fn parse_type(text: &str) -> Result<MountType, String> {
    match text {
        "volume" => Ok(MountType::Volume),
        "bind" => Ok(MountType::Bind),
        "tmpfs" => Ok(MountType::Tmpfs),
        other => Err(format!("{other:?} is not a type of mount; give volume, bind or tmpfs")),
    }
}

/// `readonly`, `readonly=true`, `readonly=0`.
fn parse_switch(option: &str, value: &str) -> Result<bool, String> {
    match value {
        "" if !option.contains('=') => Ok(true),
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(format!("{other:?} is not true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::value;

    #[test]
    fn long_and_short_forms_are_the_same_mount() {
        assert_eq!(mount("type=volume,source=data,target=/data"), value::volume("data:/data"));
        assert_eq!(mount("src=data,dst=/data,ro"), value::volume("data:/data:ro"));
        let whole = "type=volume,source=data,destination=/data,volume-subpath=a,volume-nocopy=true";
        assert_eq!(mount(whole), value::volume("data:/data,subpath=a,nocopy"));
        assert_eq!(mount("type=bind,source=/srv,target=/data,readonly=true"), value::bind("/srv:/data:ro"));
        let slave = "type=bind,src=/srv,target=/data,bind-propagation=rslave,bind-nonrecursive";
        assert_eq!(mount(slave), value::bind("/srv:/data:rslave,nonrecursive"));
        let tmpfs = "type=tmpfs,target=/tmp,tmpfs-size=64Mi,tmpfs-mode=1777";
        assert_eq!(mount(tmpfs), value::tmpfs("/tmp:size=64Mi,mode=1777"));
    }

    #[test]
    fn wrong_mount_names_the_option() {
        for (bad, why) in [
            ("", "\"\" is not known; there are type, source"),
            ("/data", "\"/data\" is not known"),
            ("type=npipe,target=/x", "\"npipe\" is not a type of mount; give volume, bind or tmpfs"),
            ("type=volume,target=/x", "every volume has a name here"),
            ("type=volume,source=x", "target is missing"),
            ("type=bind,target=/x", "give the path on the node as source=PATH"),
            ("type=tmpfs,source=a,target=/x", "a tmpfs has no source"),
            ("type=bind,source=/a,target=/x,tmpfs-size=1Mi", "tmpfs-size does not fit the type"),
            ("source=a,target=/x,volume-driver=nfs", "create it with `warren volume create`"),
            ("source=a,source=b,target=/x", "option \"source=b\" is given twice"),
            ("source=a,target=/x,readonly=yes", "\"yes\" is not true or false"),
        ] {
            let found = mount(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }
}
