// The login: the viewer's time zone, which the first page is already shown in.

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone) document.cookie = `wattline_zone=${zone}; Path=/; SameSite=Lax; Max-Age=31536000`;
