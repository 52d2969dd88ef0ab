//! A node as callers see it.

use std::collections::BTreeMap;

use ledger_projections::refused_reports::RefusedReport;
use ledger_projections::trust::Standing;
use ledger_protocol::event::NodeCertified;
use ledger_protocol::id::{CommandId, NodeId, TenantId};
use ledger_protocol::node::{Node, Session};
use serde::Serialize;
use serde_json::Value;

use crate::commands::view::Time;

/// A node; a field that has nothing to say is absent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeView<'a> {
    id: NodeId,
    tenant_id: TenantId,
    name: &'a str,
    role: &'static str,
    labels: &'a BTreeMap<String, String>,
    connected: bool,
    /// The newest session; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionView<'a>>,
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_id: Option<&'a str>,
    generation: u64,
    applied_generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<CertificateView<'a>>,
    registered_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted_at: Option<Time>,
    /// How far the node is with what it is to trust; shown with one node, not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trust: Option<TrustView>,
    /// Desired state; shown with one node, not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spec: Option<Value>,
    /// What the node, or who spoke for it, reported and the ledger did not take, the newest first;
    /// shown with one node, not in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refused_reports: Vec<RefusedReportView<'a>>,
}

/// A report that was refused, as often as it came.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RefusedReportView<'a> {
    command_id: CommandId,
    /// What it said.
    state: &'a str,
    code: &'a str,
    problem: &'a str,
    /// Who brought the newest one.
    gateway: &'a str,
    reports: u64,
    first_at: Time,
    last_at: Time,
}

impl<'a> RefusedReportView<'a> {
    /// The report as it is kept.
    pub(super) fn of(report: &'a RefusedReport) -> Self {
        Self {
            command_id: report.command,
            state: &report.state,
            code: &report.code,
            problem: &report.problem,
            gateway: &report.gateway,
            reports: report.reports,
            first_at: Time(report.first_at),
            last_at: Time(report.last_at),
        }
    }
}

/// Since when the node is connected and where, or since when it is not and why.
#[derive(Serialize)]
struct SessionView<'a> {
    since: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CertificateView<'a> {
    fingerprint: &'a str,
    not_before: Time,
    not_after: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_kinds: Option<&'a [String]>,
    /// It opens no session any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<RevokedView<'a>>,
}

#[derive(Serialize)]
struct RevokedView<'a> {
    at: Time,
    reason: &'a str,
}

impl<'a> CertificateView<'a> {
    fn of(certified: &'a NodeCertified, node: &'a Node) -> Self {
        let revocation = node.revocation.as_ref().filter(|_| node.is_revoked());
        Self {
            revoked: revocation.map(|revocation| RevokedView {
                at: Time(revocation.at),
                reason: &revocation.reason,
            }),
            fingerprint: &certified.fingerprint,
            not_before: Time(certified.not_before),
            not_after: Time(certified.not_after),
            allowed_kinds: certified.allowed_kinds.as_deref(),
        }
    }
}

/// Which version of the trust bundle the node believes, and which is the newest (SPEC P1).
#[derive(Serialize)]
pub(super) struct TrustView {
    /// By the node's own word; 0 for none.
    version: u64,
    newest: u64,
    current: bool,
}

impl TrustView {
    pub(super) fn of(standing: Standing) -> Self {
        Self {
            version: standing.believed,
            newest: standing.newest,
            current: standing.believed >= standing.newest,
        }
    }
}

impl<'a> NodeView<'a> {
    /// The node as it stands.
    pub(crate) fn of(node: &'a Node) -> Self {
        let session = match &node.session {
            Session::Never => None,
            Session::Open { gateway, since, .. } => Some(SessionView {
                since: Time(*since),
                gateway: Some(gateway),
                reason: None,
            }),
            Session::Closed { reason, since } => Some(SessionView {
                since: Time(*since),
                gateway: None,
                reason: Some(reason),
            }),
        };
        Self {
            id: node.id,
            tenant_id: node.tenant,
            name: &node.name,
            role: node.role.as_str(),
            labels: &node.labels,
            connected: node.is_connected(),
            session,
            epoch: node.epoch,
            agent_version: node.agent_version.as_deref(),
            boot_id: node.boot_id.as_deref(),
            generation: node.generation,
            applied_generation: node.applied_generation,
            certificate: node
                .certificate
                .as_ref()
                .map(|certified| CertificateView::of(certified, node)),
            registered_at: Time(node.registered_at),
            deleted_at: node.deleted_at.map(Time),
            trust: None,
            spec: None,
            refused_reports: Vec::new(),
        }
    }
}
