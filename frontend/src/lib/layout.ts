// Where the nodes of a small graph go: each one layer after the last of its parents, rows near those of its parents.

export type Place = { readonly layer: number; readonly row: number };

export function layered(nodes: readonly { readonly id: string; readonly parents: readonly string[] }[]): Map<string, Place> {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const layers = new Map<string, number>();
  const layerOf = (id: string, seen: ReadonlySet<string>): number => {
    const known = layers.get(id);
    if (known !== undefined) return known;
    const parents = (byId.get(id)?.parents ?? []).filter((parent) => byId.has(parent) && !seen.has(parent)); // a circle ends here
    const layer = parents.length === 0 ? 0 : 1 + Math.max(...parents.map((parent) => layerOf(parent, new Set([...seen, id]))));
    layers.set(id, layer);
    return layer;
  };
  for (const node of nodes) layerOf(node.id, new Set());
  const places = new Map<string, Place>();
  for (let layer = 0; places.size < nodes.length; layer++) {
    const here = nodes.filter((node) => layers.get(node.id) === layer);
    const wish = (node: { readonly parents: readonly string[] }): number => {
      const rows = node.parents.map((parent) => places.get(parent)?.row).filter((row) => row !== undefined);
      return rows.length === 0 ? 0 : rows.reduce((sum, row) => sum + row, 0) / rows.length;
    };
    let next = 0;
    for (const node of [...here].sort((a, b) => wish(a) - wish(b))) {
      const row = Math.max(next, Math.floor(wish(node)));
      places.set(node.id, { layer, row });
      next = row + 1;
    }
  }
  return places;
}
