//! Which fields of the request are refused, and where the fields of a service come from.

/// Fields of `HostConfig` that are refused if they are set, with the reason.
pub(super) const REFUSED: [(&str, &str); 31] = [
    ("BlkioDeviceReadBps", NO_IO_LIMITS),
    ("BlkioDeviceReadIOps", NO_IO_LIMITS),
    ("BlkioDeviceWriteBps", NO_IO_LIMITS),
    ("BlkioDeviceWriteIOps", NO_IO_LIMITS),
    ("BlkioWeight", NO_IO_LIMITS),
    ("BlkioWeightDevice", NO_IO_LIMITS),
    ("Cgroup", "control groups are those of Warren"),
    ("CgroupParent", "control groups are those of Warren"),
    ("CpuCount", "is for Windows, which Warren does not run"),
    ("CpuPercent", "is for Windows, which Warren does not run"),
    ("CpuPeriod", "give --cpus"),
    ("CpuQuota", "give --cpus"),
    ("CpuRealtimePeriod", "real-time scheduling is not supported by this version"),
    ("CpuRealtimeRuntime", "real-time scheduling is not supported by this version"),
    ("CpuShares", "give --cpus"),
    ("CpusetCpus", "CPUs cannot be chosen in this version"),
    ("CpusetMems", "memory nodes cannot be chosen in this version"),
    ("DeviceCgroupRules", "give the devices with --device"),
    ("DeviceRequests", "generic resources are not supported by this version"),
    ("DnsOptions", "options of the resolver are not supported by this version"),
    ("Isolation", "is for Windows, which Warren does not run"),
    ("Links", "containers of one network find each other by name: use a network"),
    ("MemorySwappiness", NO_SWAP),
    ("MemorySwap", NO_SWAP),
    ("OomKillDisable", "the kernel may end every container that is out of memory"),
    ("PidMode", NO_SHARED_NAMESPACES),
    ("PublishAllPorts", "the ports of an image are not read: give them with --publish"),
    ("Runtime", "there is one runtime"),
    ("UTSMode", NO_SHARED_NAMESPACES),
    ("VolumeDriver", "give the driver with --mount type=volume,volume-driver=NAME"),
    ("VolumesFrom", "name the volumes with --volume"),
];
const NO_IO_LIMITS: &str = "limits of input and output are not supported by this version";
const NO_SWAP: &str = "swap is a setting of the nodes";
pub(super) const NO_SHARED_NAMESPACES: &str =
    "namespaces of the node or of other containers cannot be used in this version";

/// Where the fields of a service come from in this request.
pub(super) const PATHS: [(&str, &str); 24] = [
    ("EndpointSpec.Ports", "HostConfig.PortBindings"),
    ("TaskTemplate.ContainerSpec.Args", "Cmd"),
    ("TaskTemplate.ContainerSpec.CapabilityAdd", "HostConfig.CapAdd"),
    ("TaskTemplate.ContainerSpec.CapabilityDrop", "HostConfig.CapDrop"),
    ("TaskTemplate.ContainerSpec.Command", "Entrypoint"),
    ("TaskTemplate.ContainerSpec.DNSConfig.Nameservers", "HostConfig.Dns"),
    ("TaskTemplate.ContainerSpec.DNSConfig.Search", "HostConfig.DnsSearch"),
    ("TaskTemplate.ContainerSpec.Dir", "WorkingDir"),
    ("TaskTemplate.ContainerSpec.Groups", "HostConfig.GroupAdd"),
    ("TaskTemplate.ContainerSpec.Hosts", "HostConfig.ExtraHosts"),
    ("TaskTemplate.ContainerSpec.Mounts", "HostConfig.Mounts"),
    ("TaskTemplate.ContainerSpec.OomScoreAdj", "HostConfig.OomScoreAdj"),
    ("TaskTemplate.ContainerSpec.Privileges", "HostConfig.SecurityOpt"),
    ("TaskTemplate.ContainerSpec.StopGracePeriod", "StopTimeout"),
    ("TaskTemplate.ContainerSpec.Sysctls", "HostConfig.Sysctls"),
    ("TaskTemplate.ContainerSpec.Ulimits", "HostConfig.Ulimits"),
    ("TaskTemplate.ContainerSpec.storageLimit", "HostConfig.StorageOpt.size"),
    ("TaskTemplate.ContainerSpec.userNamespace", "HostConfig.UsernsMode"),
    ("TaskTemplate.LogDriver", "HostConfig.LogConfig"),
    ("TaskTemplate.Networks", "HostConfig.NetworkMode"),
    ("TaskTemplate.Resources.Limits.MemoryBytes", "HostConfig.Memory"),
    ("TaskTemplate.Resources.Limits.NanoCPUs", "HostConfig.NanoCpus"),
    ("TaskTemplate.Resources.Limits.Pids", "HostConfig.PidsLimit"),
    ("TaskTemplate.ContainerSpec.", ""),
];
