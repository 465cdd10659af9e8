<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <pipe>
    <rasterrenderer type="singlebandpseudocolor" band="2" opacity="1" alphaBand="-1"
        classificationMin="0" classificationMax="254">
      <rastershader>
        <colorrampshader colorRampType="DISCRETE" classificationMode="1" clip="0"
            minimumValue="0" maximumValue="254">
          <item value="0" label="no road" color="#14171e" alpha="0"/>
          <item value="10" label="≤ 10 mph" color="#1e4a96" alpha="255"/>
          <item value="20" label="11–20 mph" color="#3c60e0" alpha="255"/>
          <item value="30" label="21–30 mph" color="#cc68e2" alpha="255"/>
          <item value="40" label="31–40 mph" color="#fe78a0" alpha="255"/>
          <item value="50" label="41–50 mph" color="#ffa264" alpha="255"/>
          <item value="60" label="51–60 mph" color="#ffd256" alpha="255"/>
          <item value="254" label="&gt; 60 mph" color="#fffacd" alpha="255"/>
        </colorrampshader>
      </rastershader>
    </rasterrenderer>
  </pipe>
</qgis>
