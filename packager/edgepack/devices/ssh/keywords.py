"""What becomes of each keyword of OpenSSH's client configuration.

The keywords are those of ssh_config(5), OpenSSH 9.2 to 10.0; ``ssh -G`` prints them in lower case.
``docs/ssh.md`` has the table, made from here.
"""

from __future__ import annotations

from typing import Literal

Use = Literal["followed", "by ssh", "own", "not needed", "refused"]
"""``followed``: edgepack does what it says. ``by ssh``: OpenSSH has applied it already where
edgepack reads the configuration (``ssh -G``). ``own``: edgepack has a rule of its own.
``not needed``: it changes nothing that edgepack does. ``refused``: it changes who answers or what
runs, and edgepack cannot follow it: an error says so."""

_FOLLOWED = (
    "AddressFamily BindAddress BindInterface CertificateFile ConnectTimeout GlobalKnownHostsFile"
    " HostKeyAlias Hostname IdentitiesOnly IdentityAgent IdentityFile KnownHostsCommand"
    " PKCS11Provider Port ProxyCommand ProxyJump RevokedHostKeys SetEnv User UserKnownHostsFile"
)
_BY_SSH = (
    "CanonicalDomains CanonicalizeFallbackLocal CanonicalizeHostname CanonicalizeMaxDots"
    " CanonicalizePermittedCNAMEs Host IgnoreUnknown Include Match Tag"
)
_OWN = (
    "CASignatureAlgorithms CheckHostIP Ciphers ConnectionAttempts HostKeyAlgorithms"
    " KexAlgorithms MACs NoHostAuthenticationForLocalhost PubkeyAcceptedAlgorithms RekeyLimit"
    " ServerAliveCountMax ServerAliveInterval StrictHostKeyChecking TCPKeepAlive UpdateHostKeys"
    " VerifyHostKeyDNS RequiredRSASize"
)
_NOT_NEEDED = (
    "AddKeysToAgent BatchMode ChannelTimeout ClearAllForwardings Compression ControlMaster"
    " ControlPath ControlPersist DynamicForward EnableEscapeCommandline EscapeChar"
    " ExitOnForwardFailure FingerprintHash ForkAfterAuthentication ForwardAgent ForwardX11"
    " ForwardX11Timeout ForwardX11Trusted GatewayPorts GSSAPIAuthentication GSSAPIClientIdentity"
    " GSSAPIDelegateCredentials GSSAPIKexAlgorithms GSSAPIKeyExchange GSSAPIRenewalForcesRekey"
    " GSSAPIServerIdentity GSSAPITrustDns HashKnownHosts HostbasedAcceptedAlgorithms"
    " HostbasedAuthentication EnableSSHKeysign IPQoS KbdInteractiveAuthentication"
    " KbdInteractiveDevices LocalCommand LocalForward LogLevel LogVerbose NumberOfPasswordPrompts"
    " ObscureKeystrokeTiming PasswordAuthentication PermitLocalCommand PermitRemoteOpen"
    " PreferredAuthentications PubkeyAuthentication RemoteForward RequestTTY SendEnv SessionType"
    " StdinNull StreamLocalBindMask StreamLocalBindUnlink SyslogFacility Tunnel TunnelDevice"
    " VersionAddendum VisualHostKey WarnWeakCrypto XAuthLocation"
)

KEYWORDS: dict[str, Use] = {
    **dict.fromkeys(_FOLLOWED.split(), "followed"),
    **dict.fromkeys(_BY_SSH.split(), "by ssh"),
    **dict.fromkeys(_OWN.split(), "own"),
    **dict.fromkeys(_NOT_NEEDED.split(), "not needed"),
    **dict.fromkeys(("ProxyUseFdpass", "RemoteCommand", "SecurityKeyProvider"), "refused"),
}
"""By keyword, as ssh_config(5) writes it."""

HARMLESS = {
    "ProxyUseFdpass": {"no", "false"},
    "RemoteCommand": {"none"},
    "SecurityKeyProvider": {"internal"},
}
"""The values that stand for "not set", of what is refused."""
