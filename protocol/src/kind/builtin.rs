//! The table of SPEC section 3.

use std::borrow::Cow;

use super::{Kind, Lane, Role};

const NODE: &[Role] = &[Role::Node];
const SITE: &[Role] = &[Role::Site];
const RAMDISK: &[Role] = &[Role::Ramdisk];
const NODE_RAMDISK: &[Role] = &[Role::Node, Role::Ramdisk];
const EVERY: &[Role] = &[Role::Node, Role::Site, Role::Ramdisk];

const EMPTY: &str = r#"{"type":"object","properties":{},"additionalProperties":false}"#;

/// A kind with no flags set, to be completed with the ones it has.
fn kind(
    name: &'static str,
    lane: Lane,
    timeout_minutes: u32,
    roles: &'static [Role],
    payload_schema: &'static str,
) -> Kind {
    Kind {
        name: Cow::Borrowed(name),
        version: 1,
        payload_schema: Cow::Borrowed(payload_schema),
        lane,
        timeout_seconds: timeout_minutes * 60,
        roles: Cow::Borrowed(roles),
        retry_safe: false,
        self_terminating: false,
        attested: false,
        destructive: false,
        api: false,
    }
}

pub(super) fn kinds() -> [Kind; 12] {
    [
        Kind {
            api: true,
            retry_safe: true,
            attested: true,
            ..kind("diag.nvml", Lane::Control, 5, NODE_RAMDISK, EMPTY)
        },
        Kind {
            api: true,
            retry_safe: true,
            ..kind(
                "inventory.refresh",
                Lane::Control,
                5,
                EVERY,
                INVENTORY_REFRESH,
            )
        },
        Kind {
            api: true,
            retry_safe: true,
            ..kind("logs.collect", Lane::Bulk, 15, EVERY, LOGS_COLLECT)
        },
        Kind {
            api: true,
            self_terminating: true,
            destructive: true,
            ..kind("node.reboot", Lane::Control, 15, NODE_RAMDISK, EMPTY)
        },
        Kind {
            attested: true,
            destructive: true,
            ..kind("gpu.reset", Lane::Provision, 10, NODE, GPU_RESET)
        },
        Kind {
            attested: true,
            ..kind("diag.dcgm", Lane::Provision, 60, NODE_RAMDISK, DIAG_DCGM)
        },
        Kind {
            attested: true,
            destructive: true,
            ..kind("disk.wipe", Lane::Bulk, 12 * 60, RAMDISK, DISK_WIPE)
        },
        Kind {
            destructive: true,
            ..kind("deploy.image", Lane::Provision, 60, RAMDISK, DEPLOY_IMAGE)
        },
        Kind {
            self_terminating: true,
            destructive: true,
            ..kind("boot.kexec", Lane::Provision, 15, RAMDISK, BOOT_KEXEC)
        },
        Kind {
            destructive: true,
            ..kind("bmc.power", Lane::Control, 5, SITE, BMC_POWER)
        },
        Kind {
            destructive: true,
            ..kind("site.httpProxy", Lane::Control, 5, SITE, SITE_HTTP_PROXY)
        },
        Kind {
            self_terminating: true,
            ..kind("daemon.upgrade", Lane::Provision, 15, EVERY, DAEMON_UPGRADE)
        },
    ]
}

const INVENTORY_REFRESH: &str = r#"{
  "type": "object",
  "properties": {
    "sections": {
      "type": "array", "minItems": 1, "maxItems": 8, "uniqueItems": true,
      "items": {"enum": ["system", "cpu", "memory", "disks", "nics", "gpus", "bmc", "os"]}
    },
    "rescan": {"type": "boolean"}
  },
  "additionalProperties": false
}"#;

const LOGS_COLLECT: &str = r#"{
  "type": "object",
  "properties": {
    "sinceSeconds": {"type": "integer", "minimum": 60, "maximum": 604800},
    "units": {
      "type": "array", "maxItems": 16, "uniqueItems": true,
      "items": {
        "type": "string", "maxLength": 255,
        "pattern": "^[A-Za-z0-9:_.\\\\@][A-Za-z0-9:_.\\\\@-]*$"
      }
    }
  },
  "additionalProperties": false
}"#;

const GPU_RESET: &str = r#"{
  "type": "object",
  "properties": {"gpus": {
    "type": "array", "minItems": 1, "maxItems": 64, "uniqueItems": true,
    "items": {"type": "string", "pattern": "^GPU-[0-9a-fA-F-]{8,40}$"}
  }},
  "additionalProperties": false
}"#;

const DIAG_DCGM: &str = r#"{
  "type": "object",
  "properties": {
    "level": {"type": "integer", "minimum": 1, "maximum": 4},
    "gpus": {
      "type": "array", "minItems": 1, "maxItems": 64, "uniqueItems": true,
      "items": {"type": "string", "pattern": "^GPU-[0-9a-fA-F-]{8,40}$"}
    }
  },
  "required": ["level"],
  "additionalProperties": false
}"#;

const DISK_WIPE: &str = r#"{
  "type": "object",
  "properties": {
    "devices": {
      "type": "array", "minItems": 1, "maxItems": 64, "uniqueItems": true,
      "items": {"type": "string", "pattern": "^/[^\\u0000]+$", "maxLength": 4095}
    },
    "method": {"enum": ["discard", "zero", "secure-erase"]}
  },
  "required": ["devices", "method"],
  "additionalProperties": false
}"#;

const DEPLOY_IMAGE: &str = r#"{
  "type": "object",
  "properties": {
    "image": {
      "type": "object",
      "properties": {
        "url": {"type": "string", "pattern": "^https?://", "maxLength": 2048},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}
      },
      "required": ["url", "sha256"],
      "additionalProperties": false
    },
    "device": {"type": "string", "pattern": "^/[^\\u0000]+$", "maxLength": 4095}
  },
  "required": ["image", "device"],
  "additionalProperties": false
}"#;

const BOOT_KEXEC: &str = r#"{
  "type": "object",
  "properties": {
    "kernel": {"type": "string", "minLength": 1, "maxLength": 4095},
    "initrd": {"type": "string", "minLength": 1, "maxLength": 4095},
    "cmdline": {"type": "string", "maxLength": 4095}
  },
  "required": ["kernel", "initrd", "cmdline"],
  "additionalProperties": false
}"#;

const BMC_POWER: &str = r#"{
  "type": "object",
  "properties": {
    "bmc": {"type": "string", "minLength": 1, "maxLength": 2048},
    "action": {"enum": ["on", "off", "cycle"]},
    "secretRef": {"type": "string", "minLength": 1, "maxLength": 200}
  },
  "required": ["bmc", "action", "secretRef"],
  "additionalProperties": false
}"#;

const SITE_HTTP_PROXY: &str = r#"{
  "type": "object",
  "properties": {
    "url": {"type": "string", "pattern": "^https?://", "maxLength": 2048},
    "method": {"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]},
    "body": {"type": "string", "maxLength": 32768},
    "secretRef": {"type": "string", "minLength": 1, "maxLength": 200}
  },
  "required": ["url", "method"],
  "additionalProperties": false
}"#;

const DAEMON_UPGRADE: &str = r#"{
  "type": "object",
  "properties": {
    "version": {"type": "string", "minLength": 1, "maxLength": 100},
    "url": {"type": "string", "pattern": "^https?://", "maxLength": 2048},
    "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}
  },
  "required": ["version", "url", "sha256"],
  "additionalProperties": false
}"#;
